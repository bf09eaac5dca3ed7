//! The process of an interpreter: the worker's own, confined or not, or one of a tool host's.

mod confined;
mod leftovers;
mod own;
mod remote;

use std::sync::Arc;

use tickfleet_config::PythonDef;
use tickfleet_tools::Secrets;
use tickfleet_tools::standard_error::Tail;
use tokio::net::UnixStream;

use crate::machine::Machine;

use confined::ConfinedProcess;
use own::OwnProcess;
use remote::Remote;
pub(crate) use remote::is_absent;

/// A running interpreter. Dropping it kills it; [`Process::end`] ends also what it has started.
pub(crate) enum Process {
    /// The worker has started it.
    Own(Box<OwnProcess>),
    /// A sandbox's launcher has.
    Confined(Box<ConfinedProcess>),
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
    machine: &Machine,
    tail: &Arc<Tail>,
) -> Result<(Process, UnixStream), String> {
    if let Some(host) = &def.host {
        let (remote, socket) = remote::dial(host, def.start_timeout).await?;
        return Ok((Process::Remote(remote), socket));
    }
    if let Some(sandbox) = &def.sandbox {
        let (process, socket) = confined::start(name, (def, sandbox), secrets, machine, tail).await?;
        return Ok((Process::Confined(Box::new(process)), socket));
    }
    let (process, socket) = own::start(name, def, secrets, &machine.environment, tail)?;
    Ok((Process::Own(Box::new(process)), socket))
}

impl Process {
    /// The number of its process, where that is ours.
    pub(crate) fn id(&self) -> Option<u32> {
        match self {
            Self::Own(process) => process.id(),
            Self::Confined(process) => process.launcher(),
            Self::Remote(_) => None,
        }
    }

    /// Resident bytes, in a sandbox of all that it has started as well; none where that is not known.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        match self {
            Self::Own(process) => leftovers::resident_bytes(process.id()?),
            Self::Confined(process) => Some(leftovers::resident_bytes_below(process.launcher()?)),
            Self::Remote(_) => None,
        }
    }

    /// Ends it without a grace. [`Self::end`] has to follow.
    pub(crate) fn kill(&self) {
        match self {
            Self::Own(process) => process.kill(),
            Self::Confined(process) => process.kill(),
            Self::Remote(remote) => remote.close(),
        }
    }

    /// Ends it with all that it has started. Answers how a process of ours ended, in words, where that is known; a tool host
    /// ends its own without being waited for.
    pub(crate) async fn end(self) -> Option<String> {
        match self {
            Self::Own(process) => process.end().await.map(|status| status.to_string()),
            Self::Confined(process) => process.end().await,
            Self::Remote(remote) => {
                remote.close();
                None
            }
        }
    }
}
