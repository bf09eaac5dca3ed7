//! Ends the private Redis after the parent process has ended, even if the parent was killed.
//!
//! `Drop` does not run when a process is killed. The kernel's `PR_SET_PDEATHSIG` needs unsafe code, and reacts to the
//! end of the *thread* that started the child. So a small shell holds the read end of a pipe, and only this process
//! holds the write end. When this process ends, the shell's `read` returns, and the shell ends the server.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Waits until the pipe closes. Then continues the server, in case a signal has stopped it, and lets it save. After
/// up to five seconds, kills it. `$1` is the server's process ID.
const SCRIPT: &str = r#"
read -r _
kill -CONT "$1" && kill -TERM "$1" || exit 0
for _ in 1 2 3 4 5; do
  sleep 1
  kill -0 "$1" || exit 0
done
kill -KILL "$1"
"#;

/// Dropping this value ends the watch. Drop it before the server is reaped, because the process ID of a reaped server
/// can belong to another process.
#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Starts the watch. `None` if no shell can be started. If this process then crashes, the server keeps running.
    pub(super) fn watch(pid: u32) -> Option<Self> {
        let spawned = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tickfleet-watchdog", &pid.to_string()])
            // The environment can contain secrets, and other processes of this user can read a shell's environment.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The shell gets its own process group, because Ctrl-C or a closed terminal must not end it before the
            // server has ended.
            .process_group(0)
            .spawn();
        match spawned {
            Ok(shell) => Some(Self { shell }),
            Err(error) => {
                tracing::warn!(%error, "no watchdog; if this process is killed, its private Redis keeps running");
                None
            }
        }
    }
}

#[cfg(test)]
impl Watchdog {
    /// The system also closes the pipe when the process ends.
    pub(super) fn close_pipe(&mut self) {
        self.shell.stdin = None;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Kill the shell before the pipe closes. Otherwise, the shell would mistake the closed pipe for the end of this
        // process. `kill` fails only if the shell has already ended, and `wait` only if the shell is already reaped.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
