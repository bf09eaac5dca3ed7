//! Tools of MCP servers that are configured in `mcp.yaml` and pinned in `mcp.lock.yaml`. Read `tool` first.

mod child;
mod definition;
mod events;
#[cfg(feature = "fuzzing")]
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
