//! What the tests across crates share.

pub mod bfcl;
