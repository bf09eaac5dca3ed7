//! What other kinds of tools use of this one: the guard over addresses, and secrets that are scrubbed from whatever
//! comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tickfleet_config::tools::SecretRef;
use tickfleet_model::TenantId;

use super::Environment;
use super::guard::{Guard, Resolver};
use super::secrets::Secrets;

/// A client that reaches `url` alone: its address is checked like that of an HTTP tool, it follows no redirect, and
/// repeats nothing.
///
/// # Errors
/// What is wrong with the address or the list, or why TLS cannot be set up. No secret is in it.
pub(in crate::tools) fn guarded_client(
    url: &str,
    allow_private: &BTreeSet<String>,
    connect_timeout: Duration,
) -> Result<reqwest::Client, String> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err("no crypto provider is installed in this process".to_owned());
    }
    let guard = Guard::parse(allow_private.iter().map(String::as_str))
        .map_err(|entry| format!("allow_private: '{entry}' is no host, host:port or CIDR block"))?;
    let url = Url::parse(url).map_err(|e| format!("the address is not valid: {e}"))?;
    let standing = guard.check(&url).map_err(|refused| refused.to_string())?;
    reqwest::Client::builder()
        .user_agent(concat!("tickfleet/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(connect_timeout)
        .dns_resolver(Arc::new(Resolver { guard: Arc::new(guard), standing }))
        .build()
        .map_err(|e| format!("TLS cannot be set up: {e}"))
}

/// Secrets as they were when they were read.
#[derive(Debug)]
pub(in crate::tools) struct SecretSet(Secrets);

impl SecretSet {
    /// Reads every secret. Without a tenant, one of a tenant's own is missing.
    ///
    /// # Errors
    /// The name of the first that is missing, empty or unreadable.
    pub(in crate::tools) async fn read(
        references: &BTreeMap<String, SecretRef>,
        environment: &Environment,
        tenant: Option<&TenantId>,
    ) -> Result<Self, String> {
        Secrets::resolve(references, environment, tenant).await.map(Self)
    }

    /// The value of a secret.
    pub(in crate::tools) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)
    }

    /// `template` with every `${NAME}` replaced by that secret. A name that is no secret stays as it is: the
    /// configuration was checked for such.
    pub(in crate::tools) fn fill(&self, template: &str) -> String {
        let mut filled = String::with_capacity(template.len());
        let mut rest = template;
        while let Some((before, reference, after)) =
            rest.split_once("${").and_then(|(b, r)| r.split_once('}').map(|(name, a)| (b, name, a)))
        {
            filled.push_str(before);
            match self.0.get(reference) {
                Some(value) => filled.push_str(value),
                None => filled.push_str(&format!("${{{reference}}}")),
            }
            rest = after;
        }
        filled + rest
    }

    /// `text` without the secrets, in whatever form they stand there.
    pub(in crate::tools) fn scrub(&self, text: &str) -> String {
        self.0.scrub(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn secrets_are_filled_in_once_and_never_within_a_secret() {
        let set = SecretSet(Secrets::of([("A", "${B}"), ("B", "two")]));
        assert_eq!(set.fill("Bearer ${A}, ${B}; ${C} ${"), "Bearer ${B}, two; ${C} ${");
        assert_eq!(set.scrub("token ${B}!"), "token [REDACTED]!");
    }

    #[test]
    fn a_private_address_is_refused_unless_it_is_named() {
        super::super::install_provider_for_tests();
        let client = |allowed: &[&str]| {
            let allowed = allowed.iter().map(|a| (*a).to_owned()).collect();
            guarded_client("http://127.0.0.1:8080/mcp", &allowed, Duration::from_secs(1)).map(|_| ())
        };
        assert!(client(&[]).unwrap_err().contains("allow_private"));
        assert_eq!(client(&["127.0.0.1:8080"]), Ok(()));
        assert!(client(&["127.0.0.1:9"]).is_err());
    }
}
