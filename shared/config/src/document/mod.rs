//! The YAML tree from which settings and files are read. Each value records the location where it was written, for
//! error messages.

pub(crate) mod canonical;
pub(crate) mod environment;
pub(crate) mod errors;
pub(crate) mod reader;
pub(crate) mod tree;
pub mod units;
pub(crate) mod yaml;
