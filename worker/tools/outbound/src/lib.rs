//! HTTP clients that reach only allowed addresses, as protection against server-side request forgery (SSRF).

mod address;
mod failure;
mod guard;
mod response;

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;

pub use failure::connect_failure;
pub use guard::{Blocked, Guard, HostTrust};
pub use response::{BodyError, find_source, json_values, read_body, retry_after};

use guard::Resolver;

#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// Limits resolving, connecting and the TLS handshake.
    pub timeout: Duration,
    /// How long an idle connection is kept. `None` for reqwest's default.
    pub idle: Option<Duration>,
}

/// Literal addresses bypass the resolver: call [`Guard::check`] for each URL before sending a request.
pub fn client(guard: &Arc<Guard>, standing: HostTrust, connecting: ConnectOptions) -> Result<reqwest::Client, String> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err("no crypto provider is installed in this process".to_owned());
    }
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("tickfleet/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(connecting.timeout)
        .dns_resolver(Arc::new(Resolver { guard: Arc::clone(guard), standing }));
    if let Some(idle) = connecting.idle {
        builder = builder.pool_idle_timeout(idle);
    }
    builder.build().map_err(|e| format!("TLS setup failed ({}); check ca-certificates or SSL_CERT_FILE", deepest(&e)))
}

/// Only for requests to `url`: this function checks the address once. An error contains no secrets.
pub fn client_for(
    url: &str,
    allow_private: &BTreeSet<String>,
    connect_timeout: Duration,
) -> Result<reqwest::Client, String> {
    let guard = Guard::parse(allow_private.iter().map(String::as_str))
        .map_err(|entry| format!("allow_private: '{entry}' is not a host, host:port or CIDR block"))?;
    let url = Url::parse(url).map_err(|e| format!("the address is not valid: {e}"))?;
    let standing = guard.check(&url).map_err(|refused| refused.to_string())?;
    client(&Arc::new(guard), standing, ConnectOptions { timeout: connect_timeout, idle: None })
}

pub fn install_crypto_provider() {
    drop(rustls::crypto::ring::default_provider().install_default());
}

fn deepest(error: &dyn Error) -> String {
    let mut this = error;
    while let Some(source) = this.source() {
        this = source;
    }
    this.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_private_address_is_rejected_unless_allowed() {
        install_crypto_provider();
        let client = |allowed: &[&str]| {
            let allowed = allowed.iter().map(|a| (*a).to_owned()).collect();
            client_for("http://127.0.0.1:8080/mcp", &allowed, Duration::from_secs(1)).map(|_| ())
        };
        assert!(client(&[]).unwrap_err().contains("allow_private"));
        assert_eq!(client(&["127.0.0.1:8080"]), Ok(()));
        assert!(client(&["127.0.0.1:9"]).is_err());
    }
}
