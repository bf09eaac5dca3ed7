//! The YAML tree of a file. Each value has its location, for error messages.

pub(crate) mod canonical;
pub(crate) mod environment;
pub(crate) mod errors;
pub(crate) mod reader;
pub(crate) mod tree;
pub mod units;
pub(crate) mod yaml;
