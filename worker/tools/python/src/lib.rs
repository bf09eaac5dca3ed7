//! The kind `python`: tools that are Python functions, in interpreter processes of the worker's own.
//!
//! Read in this order: `tool` (a call from end to end), `pool` and `places` (which process runs it), `slot` (the life of one process
//! after the other), `interpreter` (a process that is up, and its socket), `process` (starting and ending one, with all
//! that it has started), [`Pools`] (those of a worker, and what their modules offer).

mod code;
mod definition;
mod describe;
mod frames;
mod interpreter;
mod leftovers;
mod messages;
mod places;
mod pool;
mod pools;
mod process;
mod slot;
mod tool;

pub use code::code_fingerprint;
pub use describe::DescribeError;
pub use pools::Pools;
