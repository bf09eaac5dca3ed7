//! What the tests across crates share.

pub mod bfcl;
pub mod fleet;
