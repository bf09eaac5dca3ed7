//! What Redis keeps, as types: what a slice looks like on its queue, counters, notes.

pub(crate) mod budgets;
pub(crate) mod notes;
pub mod schema;
pub(crate) mod slice;
