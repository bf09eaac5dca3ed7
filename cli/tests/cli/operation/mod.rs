//! A fleet in operation: live configuration, scaling, traces, alerts.

mod browser;
mod cluster;
mod deploys;
mod fuzzed;
mod gateway;
mod gateway_tls;
mod live;
mod mcp_conformance;
mod mcp_kills;
mod mcp_server;
mod operators;
mod run_time;
mod scale;
mod scaling;
mod secured;
mod sentinel;
mod traces;
mod two_builds;
mod watched;
