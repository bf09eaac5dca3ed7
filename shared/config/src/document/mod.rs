//! The YAML tree that settings and files are read from: every value has its place, and errors name it.

pub(crate) mod canonical;
pub(crate) mod environment;
pub(crate) mod errors;
pub(crate) mod reader;
pub(crate) mod tree;
pub mod units;
pub(crate) mod yaml;
