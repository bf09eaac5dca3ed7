//! Other processes of the same user cannot read a fleet's secrets.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::binary::DevFleet;
use crate::support::process::until;

const SECRET: &str = "a-secret-of-the-hidden-fleet";

/// If the suite runs as root, the script drops the capabilities that allow root to read everything.
fn without_capabilities(folder: &Path, program: &str) -> PathBuf {
    let script = folder.join(Path::new(program).file_name().unwrap());
    let exec = match nix::unistd::geteuid().is_root() {
        true => "exec setpriv --bounding-set=-all --inh-caps=-all",
        false => "exec",
    };
    std::fs::write(&script, format!("#!/bin/sh\n{exec} '{program}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// The `environ` files in which another process of the same user can read the secret.
fn shown(shell: &Path) -> Vec<String> {
    let look = format!("grep -l {SECRET} /proc/[0-9]*/environ 2>/dev/null; true");
    let looked = Command::new(shell).args(["-c", &look]).output().unwrap();
    assert!(looked.status.success(), "{looked:?}");
    String::from_utf8(looked.stdout).unwrap().lines().map(String::from).collect()
}

#[test]
fn other_processes_cannot_read_a_fleets_environment_or_memory() {
    let folder = tempfile::tempdir().unwrap();
    let shell = without_capabilities(folder.path(), "/bin/sh");
    let program = without_capabilities(folder.path(), env!("CARGO_BIN_EXE_tickfleet"));
    let sleep = without_capabilities(folder.path(), "/bin/sleep");

    // Proves that `shown` finds the secret of a program without protection.
    let mut other = Command::new(sleep).arg("600").env("TOKEN", SECRET).stdin(Stdio::null()).spawn().unwrap();
    let environ = format!("/proc/{}/environ", other.id());
    until("the process without protection", || shown(&shell), |seen| *seen == [environ.as_str()]);
    other.kill().unwrap();
    other.wait().unwrap();

    let dir = folder.path().join("of-this-test").display().to_string();
    let _fleet = DevFleet::start_program(&program, folder.path(), &["--dir", &dir], &[("TOKEN", SECRET)]);
    assert_eq!(shown(&shell), Vec::<String>::new());
    let pids = "pgrep -f \"$1\" | while read -r pid; do head -c 1 /proc/$pid/mem 2>&1 | grep -c denied; \
                cat /proc/$pid/maps 2>&1 | grep -c denied; done";
    let binary = env!("CARGO_BIN_EXE_tickfleet");
    let looked =
        Command::new(&shell).args(["-c", pids, "look", &format!("^{binary} dev --dir {dir}")]).output().unwrap();
    let denied = String::from_utf8(looked.stdout).unwrap();
    assert!(denied.lines().count() >= 2 && denied.lines().all(|line| line == "1"), "{denied}");
}
