//! Tools of MCP servers, as `mcp.yaml` names them and `mcp.lock.yaml` pins them.
//!
//! Read in this order: `tool` (a call from end to end), [`Servers`] (those of a process), `server` (one connection, watched
//! and made again), `link` (a connection that is up, and which tools still are what was pinned), `child` (a server
//! that is a child process), `wire` (messages as bytes), `lines`, `http` and `events` (messages over standard input and
//! output, and over HTTP), `outcome` (what an answer means), `listing` (a page of tools), [`look()`](look()) (asking a
//! server what it offers, to pin it).

mod child;
mod definition;
mod events;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod lines;
mod link;
mod listing;
mod look;
mod outcome;
mod printable;
mod scan;
mod server;
mod servers;
mod throttle;
mod tool;
mod wire;

pub use look::{LOOK_TIMEOUT, Offer, look};
pub use servers::Servers;
