//! Configuration: one YAML tree and the environment, validated as a whole before anything starts.

mod errors;
pub mod tools;
mod tree;
pub mod units;
