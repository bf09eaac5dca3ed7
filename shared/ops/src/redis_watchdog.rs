//! Ends the private Redis after the parent process has ended, even if the parent was killed. When this process ends, a
//! pipe closes, and a shell at the other end stops the server. `PR_SET_PDEATHSIG` would need unsafe code, and reacts to
//! the end of the *thread* that started the child.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Waits until the pipe closes, lets the server save, and kills the server after five seconds. `$1` is the server's
/// process ID.
const SCRIPT: &str = r#"
read -r _
kill -CONT "$1" && kill -TERM "$1" || exit 0
for _ in 1 2 3 4 5; do
  sleep 1
  kill -0 "$1" || exit 0
done
kill -KILL "$1"
"#;

/// Drop this value before the server is reaped, because the process ID of a reaped server can belong to another
/// process.
#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// `None` if no shell can be started. The server then outlives a crash of this process.
    pub(super) fn watch(pid: u32) -> Option<Self> {
        let spawned = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tickfleet-watchdog", &pid.to_string()])
            // Other processes of this user can read the shell's environment, and the environment can contain secrets.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C or a closed terminal must not end the shell before the server has ended.
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
    /// The system also closes the pipe when this process ends.
    pub(super) fn close_pipe(&mut self) {
        self.shell.stdin = None;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Kill the shell before the pipe closes, because a closed pipe means the end of this process. Both calls fail
        // only if the shell has already ended.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
