//! Ends the private Redis when its parent is gone, however it went.
//!
//! `Drop` does not run when a process is killed, and the kernel's own means (`PR_SET_PDEATHSIG`) needs unsafe
//! code and counts the death of the *thread* that started the child. So a tiny shell holds the reading end of a
//! pipe whose writing end only we have: when we are gone, its `read` ends, and it ends the server.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Continue (it may be stopped), ask to save, wait five seconds, kill. `$1` is the server's process id.
const SCRIPT: &str = r#"
read -r _
kill -CONT "$1" && kill -TERM "$1" || exit 0
for _ in 1 2 3 4 5; do
  sleep 1
  kill -0 "$1" || exit 0
done
kill -KILL "$1"
"#;

/// Dropping it calls the watch off, which has to come before the server is waited for: its process id may then
/// become somebody else's.
#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Watches over the server `pid`. Without a shell there is no watchdog, and a crash of ours leaves the server.
    pub(super) fn over(pid: u32) -> Option<Self> {
        let spawned = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tickfleet-watchdog", &pid.to_string()])
            // Our environment may hold secrets, and another process of this user can read that of a shell.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: Ctrl-C and a killed terminal must not take it away before its work.
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
    /// Closes our end of the pipe, as the system does when we are gone.
    pub(super) fn close_pipe(&mut self) {
        self.shell.stdin = None;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // `kill` before the pipe closes: the shell must not take this for our death. It fails only where the
        // shell is gone already, and `wait` only where nothing is left to wait for.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
