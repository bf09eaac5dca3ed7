//! The kind `python`: tools that are Python functions, in interpreter processes of the worker's own, or of a tool host in a
//! container beside it.
//!
//! Read in this order: `tool` (a call from end to end), `pool` and `places` (which process runs it), `slot` (the life of
//! one process after the other), `interpreter` (one that is up, and its socket), `process` (starting and ending one, with
//! all that it has started: a process of our own, or a tool host's), [`Pools`] (those of a worker, and what their modules
//! offer).

mod code;
mod definition;
mod describe;
mod frames;
mod interpreter;
mod machine;
mod messages;
mod places;
mod pool;
mod pools;
mod process;
mod scratch;
mod slot;
mod tool;

pub use code::code_fingerprint;
pub use describe::DescribeError;
pub use pools::Pools;
