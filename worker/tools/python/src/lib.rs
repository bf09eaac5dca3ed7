//! Tools that are functions of Python or TypeScript modules. They run in interpreters (Python or Node.js processes) of
//! the worker, or of a tool host in a separate container. Read `tool` first.

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
