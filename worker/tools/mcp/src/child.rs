//! A server that runs as a child process, with a clean environment and its own process group.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::mcp::McpTransport;
use tokio::process::{ChildStdin, ChildStdout, Command};

use tickfleet_tools::process_group::ProcessGroup;
use tickfleet_tools::standard_error::{self, StderrTail};
use tickfleet_tools::{Environment, Secrets};

/// Closing the input asks a server to exit. After this time, the server is killed.
const ENDS_IN: Duration = Duration::from_secs(2);
const TERMINATES_IN: Duration = Duration::from_secs(1);

/// Dropping this value kills the process. [`ServerProcess::end`] gives the process time to exit.
pub(super) struct ServerProcess(ProcessGroup);

/// The server's environment contains only `PATH` and the configured variables.
pub(super) fn start(
    name: &str,
    transport: &McpTransport,
    secrets: &Arc<Secrets>,
    environment: &Environment,
    tail: &Arc<StderrTail>,
) -> Result<(ServerProcess, ChildStdout, ChildStdin), String> {
    let McpTransport::Stdio { command, args, env, cwd } = transport else {
        return Err("it is not a child process".to_owned());
    };
    let mut starting = Command::new(command);
    starting.args(args).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    starting.envs(environment.get("PATH").map(|path| ("PATH", path)));
    starting.envs(env.iter().map(|(name, template)| (name, secrets.fill(template))));
    let log =
        |error| standard_error::log("an MCP server", name.to_owned(), error, Arc::clone(secrets), Arc::clone(tail));
    let mut process = ProcessGroup::spawn(&mut starting, command, cwd.as_deref(), log)?;
    let (Some(input), Some(output)) = process.take_pipes() else {
        return Err(format!("'{command}' has no standard input or output"));
    };
    Ok((ServerProcess(process), output, input))
}

impl ServerProcess {
    /// Call this after the server's input was closed. Kills the whole process group, even if the server has exited.
    pub(super) async fn end(mut self) -> Option<ExitStatus> {
        let process = &mut self.0;
        let mut status = process.ended_within(ENDS_IN).await;
        if status.is_none() {
            process.terminate();
            status = process.ended_within(TERMINATES_IN).await;
        }
        // Processes that the server started may still run, so the group is killed.
        process.kill();
        if status.is_none() {
            status = process.ended_within(TERMINATES_IN).await;
        }
        process.log_ended_within(TERMINATES_IN).await;
        status
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::collections::BTreeMap;

    use nix::unistd::Pid;
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

    use super::*;

    async fn started(script: &str, env: &[(&str, &str)]) -> (ServerProcess, ChildStdout, ChildStdin) {
        let env = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let args = vec!["-c".to_owned(), script.to_owned()];
        let transport = McpTransport::Stdio { command: "sh".into(), args, env, cwd: None };
        let environment = Environment::of([("PATH", "/usr/bin:/bin"), ("TOKEN", "s3cret-value"), ("OTHER", "x")]);
        let references = [("T".to_owned(), tickfleet_config::tools::SecretRef::Env("TOKEN".into()))];
        let secrets = Secrets::resolve(&BTreeMap::from(references), &environment, None).await.unwrap();
        start("test", &transport, &Arc::new(secrets), &environment, &Arc::default()).unwrap()
    }

    #[tokio::test]
    async fn a_server_gets_only_configured_variables_and_path() {
        let (process, mut output, input) =
            started("env | grep -v ^_= | grep -v ^PWD= | sort", &[("KEY", "k ${T}")]).await;
        let mut text = String::new();
        output.read_to_string(&mut text).await.unwrap();
        let lines: Vec<&str> =
            text.lines().filter(|line| !line.starts_with("SHLVL=") && !line.starts_with("OLDPWD=")).collect();
        assert_eq!(lines, ["KEY=k s3cret-value", "PATH=/usr/bin:/bin"]);
        drop(input);
        assert!(process.end().await.unwrap().success());
    }

    #[tokio::test]
    async fn a_server_that_ignores_termination_is_killed_with_its_children() {
        let script = "trap '' TERM; sleep 600 & echo $!; while :; do wait; done";
        let (process, output, input) = started(script, &[]).await;
        let mut child = String::new();
        BufReader::new(output).read_line(&mut child).await.unwrap();
        let grandchild = Pid::from_raw(child.trim().parse().unwrap());
        assert!(nix::sys::signal::kill(grandchild, None).is_ok());
        drop(input);
        process.end().await;
        // A zombie still accepts signals until its new parent reaps it, so read the state.
        for _ in 0..200 {
            let state = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                return;
            }
            // A test cannot wait for the exit of a process that is not its child, so it polls.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the grandchild lives on");
    }
}
