//! Configuration: one YAML tree and the environment, validated as a whole before anything starts.

pub mod tools;
