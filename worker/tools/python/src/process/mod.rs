//! The process of an interpreter: a process of the worker, with or without a sandbox, or a process in a tool host.

mod confined;
mod leftovers;
mod own;
mod remote;

use std::sync::Arc;

use tickfleet_config::ModulesDef;
use tickfleet_tools::Secrets;
use tickfleet_tools::standard_error::StderrTail;
use tokio::net::UnixStream;

use crate::machine::Machine;

use confined::ConfinedProcess;
use own::OwnProcess;
use remote::Remote;
pub(crate) use remote::is_absent;

/// Killed on drop. [`Process::end`] also ends all processes that the interpreter has started.
pub(crate) enum Process {
    Own(Box<OwnProcess>),
    Confined(Box<ConfinedProcess>),
    /// The connection to the tool host.
    Remote(Remote),
}

pub(crate) async fn start(
    name: &str,
    def: &ModulesDef,
    secrets: &Arc<Secrets>,
    machine: &Machine,
    tail: &Arc<StderrTail>,
) -> Result<(Process, UnixStream), String> {
    if let Some(host) = &def.host {
        let (remote, socket) = remote::dial(host, def.start_timeout).await?;
        return Ok((Process::Remote(remote), socket));
    }
    if let Some(sandbox) = &def.sandbox {
        let (process, socket) = confined::start(name, def, sandbox, secrets, machine, tail).await?;
        return Ok((Process::Confined(Box::new(process)), socket));
    }
    let (process, socket) = own::start(name, def, secrets, &machine.environment, tail)?;
    Ok((Process::Own(Box::new(process)), socket))
}

impl Process {
    /// Returns the interpreter's process id, or the launcher's in a sandbox. `None` in a tool host.
    pub(crate) fn id(&self) -> Option<u32> {
        match self {
            Self::Own(process) => process.id(),
            Self::Confined(process) => process.launcher(),
            Self::Remote(_) => None,
        }
    }

    /// In a sandbox, counts all descendants of the launcher. `None` if unknown.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        match self {
            Self::Own(process) => leftovers::resident_bytes(process.id()?),
            Self::Confined(process) => Some(leftovers::resident_bytes_below(process.launcher()?)),
            Self::Remote(_) => None,
        }
    }

    /// Kills the process without a grace period. Call [`Self::end`] after this.
    pub(crate) fn kill(&self) {
        match self {
            Self::Own(process) => process.kill(),
            Self::Confined(process) => process.kill(),
            Self::Remote(remote) => remote.close(),
        }
    }

    /// Returns a description of the end, if known. Does not wait for a tool host, which ends its interpreter itself.
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
