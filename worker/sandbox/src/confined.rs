//! A command that stays up and is spoken with: its standard output is a socket of the caller's. It is confined, watched
//! and ended like one that runs to its end.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr};

use crate::cgroup::Cgroup;
use crate::outcome::{RunError, Stop};
use crate::sandbox::{Sandbox, frames};
use crate::spec::{Level, Spec};
use crate::wire::{FRAME_BYTES_MAX, Report};

/// A confined command that is up, or was told to be. Dropping it kills all of it.
#[derive(Debug)]
pub struct Confined {
    launcher: Child,
    control: UnixStream,
    /// A second hold of the same socket, by which it can be closed while its report is waited for.
    held: StdUnixStream,
    stderr: Option<ChildStderr>,
    /// Kills whatever is left in it when it is dropped.
    _cgroup: Option<Cgroup>,
}

/// How a confined command ended. Nothing of it is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The exit code; none where a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The bound that was crossed.
    pub stopped: Option<Stop>,
}

impl Sandbox {
    /// Starts a command whose standard output is `output`, to be read and written where that is a socket.
    ///
    /// # Errors
    /// [`RunError`]: nothing runs. That the program cannot be executed is told by [`Confined::ended`].
    pub async fn start(&self, level: Level, spec: Spec, output: OwnedFd) -> Result<Confined, RunError> {
        spec.check().map_err(RunError::Spec)?;
        self.abilities().check(level, &spec.network).map_err(RunError::Machine)?;
        if level == Level::Docker {
            return Err(RunError::Machine("a container is not spoken with".into()));
        }
        let (request, cgroup) = self.request(level, spec, false)?;
        let messages =
            frames(&request).map_err(|error| RunError::Spec(format!("the run cannot be reported: {error}")))?;
        let no_launcher = |error: std::io::Error| self.no_launcher(&error);
        let (mut launcher, control) = self.launcher_with(Stdio::from(output)).map_err(no_launcher)?;
        let control = control.into_std().map_err(no_launcher)?;
        let held = control.try_clone().map_err(no_launcher)?;
        let mut control = UnixStream::from_std(control).map_err(no_launcher)?;
        // One that ends early says why in its report.
        let _ = control.write_all(&messages).await;
        let stderr = launcher.stderr.take();
        Ok(Confined { launcher, control, held, stderr, _cgroup: cgroup })
    }
}

impl Confined {
    /// The number of the launcher's process: what it started is below it.
    #[must_use]
    pub fn launcher(&self) -> Option<u32> {
        self.launcher.id()
    }

    /// What the command says on its standard error; once.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.stderr.take()
    }

    /// Kills the command with all that it has started. [`Self::ended`] waits until that is done.
    pub fn kill(&self) {
        // It fails where the launcher has ended already, which is what is wanted.
        let _ = self.held.shutdown(Shutdown::Both);
    }

    /// Waits until nothing of the command is alive.
    ///
    /// # Errors
    /// [`RunError`]: it was not started, or the launcher was lost. One that was killed by [`Self::kill`] may end without a
    /// report, which is [`RunError::Lost`].
    pub async fn ended(&mut self) -> Result<Ended, RunError> {
        let mut report = Vec::new();
        // An error says that there is no report.
        let _ = (&mut self.control).take(FRAME_BYTES_MAX as u64).read_to_end(&mut report).await;
        let _ = self.launcher.wait().await;
        match crate::wire::read(&mut report.as_slice()) {
            Ok(Report::Refused(why)) => Err(RunError::Machine(why)),
            Ok(Report::NotStarted(why)) => Err(RunError::NotStarted(why)),
            Ok(Report::Ended { exit_code, signal, stopped, .. }) => Ok(Ended { exit_code, signal, stopped }),
            Err(_) => Err(RunError::Lost("the sandbox's launcher ended without a report".into())),
        }
    }
}
