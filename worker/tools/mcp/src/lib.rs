//! Tools of MCP servers, as `mcp.yaml` names them and `mcp.lock.yaml` pins them.
//!
//! Read in this order: `tool` (a call from end to end), [`Servers`] (those of a process), `server` (one connection, watched
//! and made again), `link` (a connection that is up, and which tools still are what was pinned), `child` (a server
//! that is a child process), `bounded` (its messages that are too large), `outcome` (what an answer means), [`look()`](look()) (asking a server what it offers, to pin it).

mod bounded;
mod child;
mod definition;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod link;
mod look;
mod outcome;
mod server;
mod servers;
mod tool;

pub use look::{LOOK_TIMEOUT, Offer, look};
pub use servers::Servers;
