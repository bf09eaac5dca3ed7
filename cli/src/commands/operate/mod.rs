//! Commands with which operators intervene: pauses, bulk cancellation of turns, dead letters, workers; and statistics.

mod causes;
pub(crate) mod dead;
pub(crate) mod known;
pub(crate) mod pause;
pub(crate) mod said;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod workers;
