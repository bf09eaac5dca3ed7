//! A child process in a process group of its own.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

/// Dropping this value kills the process and its group.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    /// Includes all processes that the child has started and that have not left the group.
    group: Option<Pid>,
    logging: Option<JoinHandle<()>>,
}

impl ProcessGroup {
    /// `log` reads the standard error of the child. The error message contains `program`.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(
        command: &mut Command,
        program: &str,
        cwd: Option<&str>,
        log: impl FnOnce(ChildStderr) -> F,
    ) -> Result<Self, String> {
        command.process_group(0).kill_on_drop(true).stderr(Stdio::piped());
        if let Some(folder) = cwd {
            command.current_dir(folder);
        }
        let mut child = command.spawn().map_err(|error| match cwd {
            Some(folder) => format!("'{program}' could not be started in '{folder}' ({error})"),
            None => format!("'{program}' could not be started ({error})"),
        })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let logging = child.stderr.take().map(|error| tokio::spawn(log(error)));
        Ok(Self { child, group, logging })
    }

    /// Standard input and output, if they are pipes and were not taken before.
    pub fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.child.stdin.take(), self.child.stdout.take())
    }

    /// `None` if the child has ended.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// `None` if the child still runs after this time.
    pub async fn ended_within(&mut self, wait: Duration) -> Option<ExitStatus> {
        tokio::time::timeout(wait, self.child.wait()).await.ok()?.ok()
    }

    /// Waits until the log of standard error has ended. The wait is bounded, because another process may keep the pipe open.
    pub async fn log_ended_within(&mut self, wait: Duration) {
        if let Some(logging) = self.logging.take() {
            let _ = tokio::time::timeout(wait, logging).await;
        }
    }

    /// Asks the processes of the group to exit.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Kills the processes of the group.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // `killpg` fails only if the group no longer exists, and then nothing is left to kill.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // `kill_on_drop` kills only the child itself. After its exit, the kernel may reuse the group id, so the group is
        // not signaled then.
        if self.child.id().is_some() {
            self.kill();
        }
    }
}
