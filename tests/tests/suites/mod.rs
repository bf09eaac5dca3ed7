//! Public suites and servers, run through the fleet or its parts.

mod agentdojo;
mod aimock;
mod bfcl_run;
mod formats_canitoolcall;
mod mcp_reference;
mod schema_suite;
