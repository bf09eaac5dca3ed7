//! What is acted upon: the world as the referee sees it, and as Redis has it.

pub mod memory;
pub mod snapshot;
pub mod spec;
pub mod verbs;
pub mod witness;
pub mod world;
