//! Tools of MCP servers that are configured in `mcp.yaml` and pinned in `mcp.lock.yaml`.
//!
//! Read in this order:
//!
//! - `tool`: a call from end to end.
//! - [`Servers`]: the servers of a process.
//! - `server`: a connection that is monitored and re-established.
//! - `link`: an open connection, and the comparison of its tools with their pins.
//! - `child`: a server that runs as a child process.
//! - `wire`: the encoding of messages.
//! - `lines`, `http` and `events`: messages over standard input and output, and over HTTP.
//! - `outcome`: the interpretation of a response.
//! - `listing`: a page of tools.
//! - [`list_tools()`](list_tools()): requests a server's tools in order to pin them.

mod child;
mod definition;
mod events;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod lines;
mod link;
mod list_tools;
mod listing;
mod outcome;
mod printable;
mod scan;
mod server;
mod servers;
mod throttle;
mod tool;
mod wire;

pub use list_tools::{LIST_TIMEOUT, ServerTools, list_tools};
pub use servers::Servers;
