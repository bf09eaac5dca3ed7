//! What the tests across crates share.

pub mod bfcl;
pub mod bfcl_course;
pub mod bfcl_node;
pub mod bfcl_tools;
pub mod doomed;
pub mod fleet;
pub mod inspect;
pub mod runtime;
pub mod inbox;
pub mod ledger;
