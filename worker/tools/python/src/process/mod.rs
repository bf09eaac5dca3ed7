//! The process of an interpreter: the worker's own, or one of a tool host's.

mod leftovers;
mod own;
mod remote;

use std::process::ExitStatus;
use std::sync::Arc;

use tickfleet_config::PythonDef;
use tickfleet_tools::standard_error::Tail;
use tickfleet_tools::{Environment, Secrets};
use tokio::net::UnixStream;

pub(crate) use leftovers::resident_bytes;
use own::OwnProcess;
use remote::Remote;
pub(crate) use remote::is_absent;

/// A running interpreter. Dropping it kills it; [`Process::end`] ends also what it has started.
pub(crate) enum Process {
    /// The worker has started it.
    Own(Box<OwnProcess>),
    /// A tool host has, and this is the connection to it.
    Remote(Remote),
}

/// Starts the interpreter of `def`, or reaches the tool host that does, and gives our end of its socket.
///
/// # Errors
/// Why there is none, in words.
pub(crate) async fn start(
    name: &str,
    def: &PythonDef,
    secrets: &Arc<Secrets>,
    environment: &Environment,
    tail: &Arc<Tail>,
) -> Result<(Process, UnixStream), String> {
    if let Some(host) = &def.host {
        let (remote, socket) = remote::dial(host, def.start_timeout).await?;
        return Ok((Process::Remote(remote), socket));
    }
    let (process, socket) = own::start(name, def, secrets, environment, tail)?;
    Ok((Process::Own(Box::new(process)), socket))
}

impl Process {
    /// The number of its process, where that is ours.
    pub(crate) fn id(&self) -> Option<u32> {
        match self {
            Self::Own(process) => process.id(),
            Self::Remote(_) => None,
        }
    }

    /// Ends it without a grace. [`Self::end`] has to follow.
    pub(crate) fn kill(&self) {
        match self {
            Self::Own(process) => process.kill(),
            Self::Remote(remote) => remote.close(),
        }
    }

    /// Ends it with all that it has started. Answers how a process of ours ended, where that is known; a tool host ends
    /// its own without being waited for.
    pub(crate) async fn end(self) -> Option<ExitStatus> {
        match self {
            Self::Own(process) => process.end().await,
            Self::Remote(remote) => {
                remote.close();
                None
            }
        }
    }
}
