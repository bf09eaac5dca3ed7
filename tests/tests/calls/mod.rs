//! Calls: arguments, permission, rules, dialects, outcomes, inner calls, and tools of MCP servers.

mod approvals;
mod arguments;
mod breakers;
mod canceled;
mod composed;
mod effects;
pub(crate) mod facts;
mod formats;
mod local;
mod mcp;
mod outcomes;
mod permission;
mod permits;
mod rules;
mod users;
