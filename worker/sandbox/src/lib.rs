//! Runs an untrusted command and leaves none of its processes alive. Start with [`spec`], [`sandbox`] (the worker's
//! side) and [`launcher`] (between worker and command). On systems other than Linux, only containers are available.

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
