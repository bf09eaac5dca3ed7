//! Looking without touching: for those who watch, explain and look after a shard.

pub(crate) mod audit;
pub(crate) mod backlog;
pub(crate) mod diagnosis;
mod held;
pub(crate) mod knowledge;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod look;
pub(crate) mod memory;
pub(crate) mod preflight;
pub(crate) mod standing;
pub(crate) mod sweep;
pub(crate) mod tasks;
pub(crate) mod usage;
pub(crate) mod watch;
