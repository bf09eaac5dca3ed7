//! The commands of operators that change what is under way: pauses, turns by the many, what was put aside, workers; and
//! statistics.

mod causes;
pub(crate) mod dead;
pub(crate) mod known;
pub(crate) mod pause;
pub(crate) mod said;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod workers;
