//! Tools declared in `tools.yaml` that call a web service.
//!
//! Read in this order: [`tool`] (a call from end to end), `template` (arguments and secrets into a request), `guard`
//! (which addresses may be reached), `client` (sending), `outcome` and `mapping` (what an answer means), `oauth2` and
//! `tokens` (signing in). `parts` is what tools of other kinds share of it.

mod address;
mod client;
mod environment;
mod guard;
mod mapping;
mod oauth2;
mod outcome;
pub(in crate::tools) mod parts;
mod percent;
mod secrets;
mod template;
mod tokens;
pub mod tool;

pub use client::HttpClients;
pub use environment::Environment;
pub use tool::{HttpTool, HttpToolError};

/// TLS needs a crypto provider; the binary installs its own.
#[cfg(test)]
pub(crate) fn install_provider_for_tests() {
    // Only the first test of a process installs it; the others find it there.
    drop(rustls::crypto::ring::default_provider().install_default());
}
