//! Tools declared in `tools.yaml` that call a web service.
//!
//! Read in this order: [`tool`] (a call from end to end), `template` (arguments and secrets into a request), `guard`
//! (which addresses may be reached), `client` (sending), `outcome` (what an answer means).

mod address;
mod client;
mod environment;
mod guard;
mod outcome;
mod secrets;
mod template;
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
