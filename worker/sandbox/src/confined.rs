//! A command that exchanges messages with the caller. The command's standard output is a socket of the caller.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr};

use crate::cgroup::Cgroup;
use crate::outcome::{RunError, StopCause};
use crate::sandbox::{Sandbox, frames};
use crate::spec::{Level, Spec};
use crate::wire::{FRAME_BYTES_MAX, Report};

/// Dropping this value kills all processes of the command.
#[derive(Debug)]
pub struct Confined {
    launcher: Child,
    control: UnixStream,
    /// Can shut the socket down while `control` waits for the report.
    held: StdUnixStream,
    stderr: Option<ChildStderr>,
    /// The drop kills all processes that are left in the cgroup.
    _cgroup: Option<Cgroup>,
}

/// All processes of the command are dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfinedEnd {
    /// `None` if a signal ended the command.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stopped: Option<StopCause>,
}

impl Sandbox {
    /// `output` is the standard output. If `output` is a socket, the command can also read from it. If the program
    /// cannot be executed, [`Confined::ended`] returns the error.
    pub async fn start(&self, level: Level, spec: Spec, output: OwnedFd) -> Result<Confined, RunError> {
        spec.check().map_err(RunError::Spec)?;
        self.support().check(level, &spec.network).map_err(RunError::Machine)?;
        if level == Level::Docker {
            return Err(RunError::Machine("a container cannot exchange messages with the worker".into()));
        }
        let (request, cgroup) = self.request(level, spec, false)?;
        let messages =
            frames(&request).map_err(|error| RunError::Spec(format!("the run cannot be reported: {error}")))?;
        let no_launcher = |error: std::io::Error| self.no_launcher(&error);
        let (mut launcher, control) = self.launcher_with(Stdio::from(output)).map_err(no_launcher)?;
        let control = control.into_std().map_err(no_launcher)?;
        let held = control.try_clone().map_err(no_launcher)?;
        let mut control = UnixStream::from_std(control).map_err(no_launcher)?;
        // If the launcher ends early, its report contains the reason.
        let _ = control.write_all(&messages).await;
        let stderr = launcher.stderr.take();
        Ok(Confined { launcher, control, held, stderr, _cgroup: cgroup })
    }
}

impl Confined {
    /// The command's processes are descendants of the launcher.
    #[must_use]
    pub fn launcher(&self) -> Option<u32> {
        self.launcher.id()
    }

    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.stderr.take()
    }

    /// Does not wait. [`Self::ended`] waits for the end of the processes.
    pub fn kill(&self) {
        // Fails if the launcher has ended. Then no process is alive.
        let _ = self.held.shutdown(Shutdown::Both);
    }

    /// Waits until no process of the command is alive. After [`Self::kill`], the error can be [`RunError::Lost`].
    pub async fn ended(&mut self) -> Result<ConfinedEnd, RunError> {
        let mut report = Vec::new();
        // Errors are ignored here, because an incomplete report cannot be parsed below.
        let _ = (&mut self.control).take(FRAME_BYTES_MAX as u64).read_to_end(&mut report).await;
        let _ = self.launcher.wait().await;
        match crate::wire::read(&mut report.as_slice()) {
            Ok(Report::Refused(why)) => Err(RunError::Machine(why)),
            Ok(Report::NotStarted(why)) => Err(RunError::NotStarted(why)),
            Ok(Report::Ended { exit_code, signal, stopped, .. }) => Ok(ConfinedEnd { exit_code, signal, stopped }),
            Err(_) => Err(RunError::Lost("the sandbox's launcher ended without a report".into())),
        }
    }
}
