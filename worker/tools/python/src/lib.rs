//! Tools that are functions of Python or TypeScript modules. They run in interpreter processes of the worker, or in
//! interpreters of a tool host in a separate container. An interpreter is a Python or a Node.js process.
//!
//! Read in this order:
//!
//! - `tool`: a call from end to end.
//! - `pool` and `leases`: how a process is chosen for a call.
//! - `slot`: the processes that run in one slot, one after another.
//! - `interpreter`: a running interpreter and its socket.
//! - `process`: starts and ends the process of an interpreter, by the worker itself or through a tool host.
//! - `runtime`: the differences between Python and Node.js.
//! - [`Pools`]: the pools of a worker, and the tools that their modules offer.

mod code;
mod definition;
mod describe;
mod frames;
mod interpreter;
mod leases;
mod machine;
mod messages;
mod pool;
mod pools;
mod process;
mod runtime;
mod scratch;
mod slot;
mod tool;

pub use code::code_fingerprint;
pub use describe::DescribeError;
pub use pools::Pools;
