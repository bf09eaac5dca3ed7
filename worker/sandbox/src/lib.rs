//! Runs an untrusted command and leaves none of the command's processes alive.
//!
//! Read in this order:
//!
//! - [`spec`]: the command, what the command may access, and its limits.
//! - [`sandbox`]: a run from start to end, from the worker's side. [`confined`] is a command that keeps running and
//!   exchanges messages.
//! - [`launcher`]: the single-threaded process between worker and command. It confines, watches and kills the command.
//! - [`docker`]: a run in a container of a container engine.
//!
//! On systems other than Linux, `launcher_unsupported` replaces the launcher, and only containers are available.

#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "it is of Linux alone"))]
mod cgroup;
pub mod confined;
pub mod docker;
mod hidden;
#[cfg(target_os = "linux")]
pub mod launcher;
#[cfg(not(target_os = "linux"))]
#[path = "launcher_unsupported.rs"]
pub mod launcher;
pub mod outcome;
mod output;
pub mod removal;
pub mod sandbox;
pub mod spec;
pub mod support;
pub mod usage;
mod wire;

pub use confined::Confined;
pub use docker::Engine;
pub use hidden::hide_this_process;
pub use outcome::{RunError, RunOutcome, StopCause};
pub use sandbox::{Launcher, Sandbox};
pub use spec::{Grant, Level, Limits, Network, Spec};
pub use support::SandboxSupport;
