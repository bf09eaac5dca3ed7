//! Helpers of the escape tests: sandboxes of this machine, workspaces, and attacks in Python and shell.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;
use tickfleet_sandbox::{Launcher, Level, RunError, RunOutcome, Sandbox, Spec};
use tokio_util::sync::CancellationToken;

pub const PYTHON: &str = "/usr/bin/python3";
/// `call(number, …)` makes a system call and returns the error's name, or `ok`.
const PRELUDE: &str = "
import ctypes, errno, os, sys, time, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return 'ok' if answer >= 0 else errno.errorcode.get(ctypes.get_errno(), '?')
def attempt(what):
    try:
        return 'ok %r' % (what(),)
    except OSError as error:
        return errno.errorcode.get(error.errno, '?')
";

pub fn launcher() -> Launcher {
    Launcher::program(env!("CARGO_BIN_EXE_tickfleet-sandbox-exec"))
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// If the suite runs as root, a separate user owns the workspace.
pub fn workspace() -> TempDir {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let folder = tempfile::tempdir().unwrap();
    if is_root() {
        let owner = 1_000_000 + (std::process::id() % 1_000_000) * 100 + NEXT.fetch_add(1, Ordering::Relaxed);
        std::os::unix::fs::chown(folder.path(), Some(owner), Some(owner)).unwrap();
    }
    folder
}

/// If this machine does not support `level`, prints the reason and returns `None`.
pub async fn sandbox(level: Level) -> Option<Sandbox> {
    let scratch = workspace();
    let sandbox = Sandbox::probe(launcher(), None, scratch.path()).await;
    match sandbox.support().check(level, &tickfleet_sandbox::Network::None) {
        Ok(()) => Some(sandbox),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

pub async fn each_level() -> Vec<(Level, Sandbox)> {
    let mut all = Vec::new();
    for level in [Level::Basic, Level::Strict] {
        all.extend(sandbox(level).await.map(|sandbox| (level, sandbox)));
    }
    all
}

pub async fn run(sandbox: &Sandbox, level: Level, spec: Spec) -> RunOutcome {
    try_run(sandbox, level, spec).await.unwrap()
}

pub async fn try_run(sandbox: &Sandbox, level: Level, spec: Spec) -> Result<RunOutcome, RunError> {
    sandbox.run(level, spec, &CancellationToken::new()).await
}

pub fn shell(script: &str, workspace: &Path) -> Spec {
    Spec::new(["/bin/sh", "-c", script], workspace)
}

pub fn python(script: &str, workspace: &Path) -> Spec {
    Spec::new([PYTHON, "-c", &format!("{PRELUDE}\n{script}")], workspace)
}

/// Panics if the attack itself fails.
pub async fn attack(sandbox: &Sandbox, level: Level, script: &str, workspace: &Path) -> String {
    attack_with(sandbox, level, python(script, workspace)).await
}

pub async fn attack_with(sandbox: &Sandbox, level: Level, spec: Spec) -> String {
    let outcome = run(sandbox, level, spec).await;
    assert_eq!(outcome.exit_code, Some(0), "{level}: {} {outcome:?}", err(&outcome));
    out(&outcome)
}

pub fn out(outcome: &RunOutcome) -> String {
    String::from_utf8_lossy(&outcome.stdout).trim_end().to_owned()
}

pub fn err(outcome: &RunOutcome) -> String {
    String::from_utf8_lossy(&outcome.stderr).into_owned()
}

/// The path at which the sandboxed command sees the workspace.
pub fn seen(level: Level, workspace: &Path) -> PathBuf {
    match level {
        Level::Basic => workspace.to_owned(),
        _ => tickfleet_sandbox::spec::WORKSPACE.into(),
    }
}

pub fn processes_with(mark: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let own = std::process::id().to_string();
    let pids = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pids = pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && *pid != own);
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark)
    })
    .collect()
}

/// Shell code that leaves a process in its own session. The command `:` keeps the inner shell from replacing itself
/// with `sleep`.
pub fn left_behind(mark: &str) -> String {
    format!("setsid sh -c 'sleep 600; : {mark}' &")
}
