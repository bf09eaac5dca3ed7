//! Commands for operators: pauses, bulk cancellation of turns, dead letters, workers and statistics.

pub(crate) mod audit_note;
mod causes;
pub(crate) mod dead;
pub(crate) mod name_check;
pub(crate) mod pause;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod workers;
