//! The level `docker`: a short-lived container on the host. The container engine confines the command.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::outcome::{RunError, RunOutcome, StopCause};
use crate::output::drain;
use crate::spec::{Network, Spec, WORKSPACE};
use crate::usage;

/// A starting worker waits this long for the engine's response.
const ENGINE: Duration = Duration::from_secs(5);
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The engine's client ends with this code if it could not start a container.
const NOT_STARTED: i32 = 125;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    pub program: PathBuf,
    pub image: String,
}

impl Engine {
    /// `None` if the engine responds.
    pub async fn missing(&self) -> Option<String> {
        let shown = self.program.display();
        let mut ask = client(&self.program);
        ask.args(["version", "--format", "{{.Server.Version}}"]).stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(ENGINE, ask.output()).await {
            Ok(Ok(answer)) if answer.status.success() => None,
            Ok(Ok(_)) => Some(format!("`{shown} version` fails: no engine responds")),
            Ok(Err(error)) => Some(format!("`{shown}` cannot be executed: {error}")),
            Err(_) => Some(format!("`{shown} version` does not respond")),
        }
    }

    /// This level supports neither network access nor grants. The workspace must be mountable.
    pub fn arguments(&self, spec: &Spec, name: &str) -> Result<Vec<String>, RunError> {
        if spec.network != Network::None || !spec.grants.is_empty() {
            let why = "the sandbox level docker grants neither the network nor further paths";
            return Err(RunError::Machine(why.into()));
        }
        let workspace = spec.workspace.to_str().filter(|path| !path.contains([',', ':', '"']));
        let workspace = workspace.ok_or_else(|| RunError::Spec("the workspace's path cannot be mounted".into()))?;
        let limits = &spec.limits;
        let found = spec.workspace.metadata();
        let found = found.map_err(|error| RunError::Spec(format!("the workspace cannot be checked: {error}")))?;
        if found.uid() == 0 || found.gid() == 0 {
            return Err(RunError::Machine("the workspace must belong to another user than root".into()));
        }
        let mut all: Vec<String> = ["run", "--rm", "--interactive", "--init", "--network", "none", "--read-only"]
            .into_iter()
            .map(String::from)
            .collect();
        let options = [
            ("name", name.to_owned()),
            ("pull", "never".to_owned()),
            ("ipc", "private".to_owned()),
            ("cap-drop", "ALL".to_owned()),
            ("security-opt", "no-new-privileges".to_owned()),
            ("user", format!("{}:{}", found.uid(), found.gid())),
            ("memory", limits.memory_bytes.to_string()),
            ("memory-swap", limits.memory_bytes.to_string()),
            ("pids-limit", limits.processes.to_string()),
            ("ulimit", format!("cpu={0}:{0}", limits.cpu_ms.div_ceil(1_000).max(1))),
            ("ulimit", format!("fsize={0}:{0}", limits.file_bytes)),
            ("ulimit", format!("nofile={0}:{0}", limits.open_files)),
            ("ulimit", "core=0:0".to_owned()),
            ("shm-size", (64_u64 << 20).to_string()),
            ("tmpfs", "/tmp:rw,nosuid,nodev,size=67108864".to_owned()),
            ("mount", format!("type=bind,source={workspace},target={WORKSPACE}")),
            ("workdir", WORKSPACE.to_owned()),
            ("env", format!("HOME={WORKSPACE}")),
        ];
        all.extend(options.map(|(option, value)| format!("--{option}={value}")));
        all.extend(spec.environment.iter().map(|(key, value)| format!("--env={key}={value}")));
        all.extend(["--entrypoint".to_owned(), spec.argv[0].clone(), self.image.clone()]);
        all.extend(spec.argv.iter().skip(1).cloned());
        Ok(all)
    }

    pub async fn run(&self, spec: &Spec, cancel: &CancellationToken) -> Result<RunOutcome, RunError> {
        let name = name();
        let started = client(&self.program)
            .args(self.arguments(spec, &name)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child =
            started.map_err(|error| RunError::Machine(format!("the engine cannot be executed: {error}")))?;
        let removal = ContainerRemoval { program: self.program.clone(), name: Some(name) };
        let input = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let keep = spec.limits.output_bytes;
        let fed = async {
            if let Some(mut input) = input {
                // Fails if the command closes the pipe without reading its input.
                let _ = input.write_all(&spec.stdin).await;
            }
        };
        let wall = Duration::from_millis(spec.limits.wall_ms);
        let whole = async { tokio::join!(fed, drain(stdout, keep), drain(stderr, keep), child.wait()) };
        let stopped = |stopped| RunOutcome {
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit_code: None,
            signal: None,
            truncated: false,
            stopped: Some(stopped),
        };
        let ended = tokio::select! {
            ended = tokio::time::timeout(wall, whole) => ended.map_err(|_| StopCause::Wall),
            () = cancel.cancelled() => Err(StopCause::Cancelled),
            stop = wait_until_over_limit(spec) => Err(stop),
        };
        let ((), (stdout, cut), (stderr, cut_too), status) = match ended {
            Ok(ended) => ended,
            Err(stop) => return Ok(stopped(stop)),
        };
        let code = status.ok().and_then(|status| status.code());
        if code == Some(NOT_STARTED) {
            return Err(RunError::Machine(String::from_utf8_lossy(&stderr).trim().to_owned()));
        }
        removal.disarm();
        let stopped = check_workspace(spec).await;
        Ok(RunOutcome { stdout, stderr, exit_code: code, signal: None, truncated: cut || cut_too, stopped })
    }
}

/// Checks the workspace regularly, because an engine does not limit the size of a mount.
async fn wait_until_over_limit(spec: &Spec) -> StopCause {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        if let Some(stop) = check_workspace(spec).await {
            return stop;
        }
    }
}

async fn check_workspace(spec: &Spec) -> Option<StopCause> {
    let workspace = spec.workspace.clone();
    let limits = spec.limits.clone();
    let check = move || usage::exceeded_limit(usage::folder_size(&workspace, limits.workspace_files), &limits);
    // The task fails only while the runtime shuts down.
    tokio::task::spawn_blocking(check).await.ok().flatten()
}

/// Killing the engine's client leaves the container running, so dropping this value removes the container.
struct ContainerRemoval {
    program: PathBuf,
    name: Option<String>,
}

impl ContainerRemoval {
    fn disarm(mut self) {
        self.name = None;
    }
}

impl Drop for ContainerRemoval {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        let removing = client(&self.program)
            .args(["rm", "--force", &name])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        if let Err(error) = removing {
            tracing::error!(container = name, %error, "cannot remove a container");
        }
    }
}

/// Has the variables that locate the engine, but not the worker's secrets.
#[allow(clippy::disallowed_methods, reason = "it is handed on to a child process, and decides nothing here")]
fn client(program: &Path) -> Command {
    let is_for_it = |name: &str| {
        let prefixes = ["DOCKER_", "CONTAINER_", "CONTAINERS_", "XDG_"];
        ["PATH", "HOME"].contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    let mut command = Command::new(program);
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_for_it)));
    command
}

fn name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let host: String = host.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("tickfleet-{host}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}
