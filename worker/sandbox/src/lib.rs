//! Runs one command that nobody trusts, and leaves nothing of it alive.
//!
//! Read in this order: [`spec`] (what is run, with what it may reach and use), [`sandbox`] (a run from end to end, seen by
//! the worker; [`confined`] is one that stays up and is spoken with), [`launcher`] (the single-threaded process between the two, which confines, watches and kills),
//! [`docker`] (the same by a container engine). Elsewhere than on Linux, `elsewhere` stands in for the launcher: containers
//! are all there is.

pub mod abilities;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "it is of Linux alone"))]
mod cgroup;
pub mod confined;
pub mod docker;
mod hidden;
#[cfg(target_os = "linux")]
pub mod launcher;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
pub mod launcher;
pub mod outcome;
mod output;
pub mod removal;
pub mod sandbox;
pub mod spec;
pub mod usage;
mod wire;

pub use abilities::Abilities;
pub use confined::Confined;
pub use docker::Engine;
pub use hidden::hide_this_process;
pub use outcome::{Outcome, RunError, Stop};
pub use sandbox::{Launcher, Sandbox};
pub use spec::{Grant, Level, Limits, Network, Spec};
