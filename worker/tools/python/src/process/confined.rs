//! An interpreter in a sandbox. The launcher ends all processes of the sandbox, even if the worker is killed.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::ModulesDef;
use tickfleet_config::tools::{ModulesSandbox, ShellLevel};
use tickfleet_sandbox::confined::{Confined, ConfinedEnd};
use tickfleet_sandbox::outcome::RunError;
use tickfleet_sandbox::{Grant, Level, Limits, Network, Spec};
use tickfleet_tools::Secrets;
use tickfleet_tools::standard_error::{self, StderrTail};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::own::{ENDS_IN, KILL_TIMEOUT, variables};
use crate::machine::Machine;
use crate::runtime::{self, SocketAt};
use crate::scratch::Scratch;

/// Maximum number of processes of the interpreter and its tools. The limit grows by one for each concurrent call.
const PROCESSES: u64 = 64;
const OPEN_FILES: u64 = 1_024;
/// The sandbox's memory limit, as a multiple of `memory_max`. At `memory_max`, an interpreter is replaced. At the
/// limit, it is killed.
const WALL: u64 = 2;
/// The variable that names the temporary folder. A confined interpreter has its own temporary folder.
const TEMPORARY: &str = "TMPDIR";

/// Dropping this value kills the whole sandbox.
pub(crate) struct ConfinedProcess {
    confined: Confined,
    listening: Option<JoinHandle<()>>,
    scratch: Option<Scratch>,
}

pub(super) async fn start(
    name: &str,
    def: &ModulesDef,
    sandbox: &ModulesSandbox,
    secrets: &Arc<Secrets>,
    machine: &Machine,
    tail: &Arc<StderrTail>,
) -> Result<(ConfinedProcess, UnixStream), String> {
    let no_socket = |error: std::io::Error| format!("cannot create a socket ({error})");
    let (ours, theirs) = StdUnixStream::pair().map_err(no_socket)?;
    ours.set_nonblocking(true).map_err(no_socket)?;
    let ours = UnixStream::from_std(ours).map_err(no_socket)?;
    let scratch = Scratch::new().map_err(|error| format!("cannot create its folder ({error})"))?;
    let spec = spec(def, sandbox, variables(def, secrets, &machine.environment), scratch.path(), machine)?;
    let holding = machine.sandbox().await?;
    let started = holding.start(level(sandbox.level), spec, OwnedFd::from(theirs)).await;
    let mut confined = started.map_err(|error| error.to_string())?;
    let listen = |stderr| {
        standard_error::log(
            runtime::process(def.runtime),
            name.to_owned(),
            stderr,
            Arc::clone(secrets),
            Arc::clone(tail),
        )
    };
    let listening = confined.take_stderr().map(|stderr| tokio::spawn(listen(stderr)));
    Ok((ConfinedProcess { confined, listening, scratch: Some(scratch) }, ours))
}

const fn level(level: ShellLevel) -> Level {
    match level {
        ShellLevel::Basic => Level::Basic,
        ShellLevel::Strict => Level::Strict,
        ShellLevel::Docker => Level::Docker,
    }
}

fn spec(
    def: &ModulesDef,
    sandbox: &ModulesSandbox,
    variables: BTreeMap<String, String>,
    scratch: &Path,
    machine: &Machine,
) -> Result<Spec, String> {
    let path = machine.environment.get("PATH").unwrap_or_default();
    let interpreter = runtime::interpreter(&def.interpreter, &path)?;
    let folders: Vec<PathBuf> = runtime::folders(def).iter().map(|folder| real(folder)).collect::<Result<_, _>>()?;
    // The standard input is an empty file in the sandbox, so the socket is the standard output.
    let argv = runtime::command(def, interpreter.display().to_string(), &folders, SocketAt::StandardOutput)?;
    let beside = runtime::reads(def, &interpreter, &folders)?;
    let mut grants: Vec<Grant> = folders.into_iter().chain(beside).map(|path| Grant { path, write: false }).collect();
    for granted in &sandbox.paths {
        grants.push(Grant { path: real(Path::new(&granted.path))?, write: granted.write });
    }
    let network = match sandbox.tcp_ports.is_empty() {
        true => Network::None,
        false => Network::Tcp(sandbox.tcp_ports.iter().copied().collect()),
    };
    let limits = Limits {
        // An interpreter runs without a time limit. Each call has its own timeout.
        cpu_ms: u64::MAX,
        wall_ms: u64::MAX,
        memory_bytes: def.memory_max.saturating_mul(WALL),
        processes: PROCESSES + def.concurrency as u64,
        open_files: OPEN_FILES,
        ..Limits::default()
    };
    let environment = variables.into_iter().filter(|(name, _)| name != TEMPORARY).collect();
    Ok(Spec { environment, grants, network, limits, ..Spec::new(argv, real(scratch)?) })
}

fn real(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("'{}' cannot be granted ({error})", path.display()))
}

impl ConfinedProcess {
    /// Returns the launcher's process id. The interpreter is a descendant of the launcher.
    pub(super) fn launcher(&self) -> Option<u32> {
        self.confined.launcher()
    }

    /// Kills all processes of the sandbox. Call [`Self::end`] after this.
    pub(super) fn kill(&self) {
        self.confined.kill();
    }

    /// Call this after the host's socket was closed. Kills the host if it does not exit.
    pub(super) async fn end(mut self) -> Option<String> {
        let mut ended = tokio::time::timeout(ENDS_IN, self.confined.ended()).await.ok();
        if ended.is_none() {
            self.kill();
            ended = tokio::time::timeout(KILL_TIMEOUT, self.confined.ended()).await.ok();
        }
        // The last output may still arrive, so wait for it.
        if let Some(listening) = self.listening.take() {
            let _ = tokio::time::timeout(Duration::from_millis(200), listening).await;
        }
        if let Some(scratch) = self.scratch.take() {
            // An error means that the runtime is stopping, and then the worker's process exits too.
            let _ = tokio::task::spawn_blocking(move || drop(scratch)).await;
        }
        ended.and_then(words)
    }
}

fn words(ended: Result<ConfinedEnd, RunError>) -> Option<String> {
    match ended {
        Ok(ConfinedEnd { stopped: Some(stop), .. }) => Some(format!("the sandbox: {}", stop.message())),
        Ok(ConfinedEnd { exit_code: Some(code), .. }) => Some(format!("exit status: {code}")),
        Ok(ConfinedEnd { signal: Some(signal), .. }) => Some(format!("signal: {signal}")),
        Ok(ConfinedEnd { .. }) | Err(RunError::Lost(_)) => None,
        Err(refused) => Some(refused.to_string()),
    }
}
