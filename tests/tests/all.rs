//! One integration-test binary: linking twenty costs more than running them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agentdojo;
mod arguments;
mod bad_input;
mod bfcl_run;
mod chaos;
mod client;
mod crashes;
mod delegation;
mod formats;
mod formats_canitoolcall;
mod gone;
mod governance;
mod inboxes;
mod interleavings;
mod life_of_a_turn;
mod mcp;
mod mcp_reference;
mod metrics;
mod observability;
mod outcomes;
mod permission;
mod policy;
mod pools;
mod schema_suite;
mod settings;
mod social;
mod store;
mod survival;
mod tidy;
