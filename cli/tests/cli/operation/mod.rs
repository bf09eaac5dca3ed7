//! A fleet in operation: gateways, operator commands, live configuration, scaling, traces and alerts.

mod cluster;
mod deploys;
mod drains;
mod findings;
pub mod gateway;
mod hidden;
mod lists;
mod live;
mod mcp_server;
mod mcp_wrap;
mod operators;
mod run_time;
mod scale;
mod scaling;
mod secured;
mod sentinel;
mod traces;
mod watched;
