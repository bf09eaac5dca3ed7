//! Calls: arguments, permission, dialects, outcomes, and tools of MCP servers.

mod arguments;
mod formats;
mod mcp;
mod outcomes;
mod permission;
