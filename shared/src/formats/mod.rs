//! How turns, tasks and results look on the wire.
pub mod json;
