//! The commands of operators that change what is under way: pauses, and turns by the many.

pub(crate) mod pause;
pub(crate) mod turns;
