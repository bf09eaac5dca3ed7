//! Code that tests share: the binary, processes, a Prometheus, a Python, and the checker of documents.

pub mod binary;
pub mod certificates;
pub mod documents;
pub mod files;
pub mod node;
pub mod packages;
pub mod process;
pub mod prometheus;
pub mod python;
pub mod serve;
