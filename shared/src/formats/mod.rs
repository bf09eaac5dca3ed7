//! How turns, tasks and results look on the wire.
mod fields;
pub mod json;
pub mod refusal;
pub mod task;
pub mod turn;
mod write;
pub use refusal::{Refusal, RefusedCall};
