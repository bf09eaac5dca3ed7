//! Shared code of the tests across crates.

pub mod agentdojo;
pub mod bfcl;
pub mod bfcl_course;
pub mod bfcl_node;
pub mod bfcl_tools;
pub mod fetched;
pub mod fleet;
pub mod inbox;
pub mod inspect;
pub mod killable;
pub mod ledger;
pub mod llm;
pub mod local;
pub mod mcp;
pub mod plain_node;
pub mod runtime;
