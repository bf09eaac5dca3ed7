//! Tools of MCP servers, as `mcp.yaml` names them and `mcp.lock.yaml` pins them.
//!
//! Read in this order: [`tool`] (a call from end to end), [`server`] (one connection per server and process, watched
//! and made again), `link` (a connection that is up, and which tools still are what was pinned), `child` (a server
//! that is a child process), `outcome` (what an answer means), [`look()`](look()) (asking a server what it offers, to pin it).

mod child;
mod definition;
mod http;
mod link;
pub mod look;
mod outcome;
pub mod server;
pub mod tool;

pub use look::{LOOK_TIMEOUT, Offer, look};
pub use server::Servers;
