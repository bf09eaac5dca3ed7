//! The YAML tree from which settings and files are read. Each value has its place, which errors show.

pub(crate) mod canonical;
pub(crate) mod environment;
pub(crate) mod errors;
pub(crate) mod reader;
pub(crate) mod tree;
pub mod units;
pub(crate) mod yaml;
