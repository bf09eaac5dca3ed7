//! Reads an issuer's public keys from a file or from the issuer.

use std::net::IpAddr;
use std::path::PathBuf;

use futures::StreamExt;
use reqwest::{Client, Response, Url};
use serde::Deserialize;

use super::keyset::{KeySet, SET_BYTES_MAX};
use super::{TokenError, TokenOptions};

/// Relative to the issuer's URL (OpenID Connect Discovery 1.0).
const DISCOVERY: &str = ".well-known/openid-configuration";

#[derive(Debug)]
pub(super) enum Source {
    /// The file has a JSON Web Key Set.
    File(PathBuf),
    Issuer {
        /// Shared by all reads, so that connections are reused.
        client: Client,
        name: String,
        discovery: Url,
    },
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

#[derive(Debug)]
pub(super) struct Endpoints {
    pub(super) authorization: Url,
    pub(super) token: Url,
    /// The token endpoint accepts a client secret only in the body (`client_secret_post`).
    pub(super) takes_secret_in_body: bool,
}

impl Endpoints {
    fn of(found: &Discovery) -> Result<Self, String> {
        let endpoint = |name: &str, url: Option<&String>| trusted(url.ok_or_else(|| format!("no {name}"))?);
        let methods = found.token_endpoint_auth_methods_supported.as_deref();
        let takes = |method: &str| methods.is_some_and(|all| all.iter().any(|one| one == method));
        Ok(Self {
            authorization: endpoint("authorization_endpoint", found.authorization_endpoint.as_ref())?,
            token: endpoint("token_endpoint", found.token_endpoint.as_ref())?,
            takes_secret_in_body: takes("client_secret_post") && !takes("client_secret_basic"),
        })
    }
}

#[derive(Debug)]
pub(super) struct IssuerRead {
    pub(super) keys: KeySet,
    /// An error is the reason why sign-in is not possible; tokens are still accepted.
    pub(super) endpoints: Result<Endpoints, String>,
}

impl Source {
    /// Fails if the issuer's URL is not trusted, or if TLS cannot be set up.
    pub(super) fn of(options: &TokenOptions) -> Result<Self, TokenError> {
        if let Some(file) = &options.jwks {
            return Ok(Self::File(file.clone()));
        }
        let issuer = options.issuer.as_str();
        let invalid = |problem: String| TokenError::Issuer { issuer: issuer.to_owned(), problem };
        let discovery = trusted(&format!("{}/{DISCOVERY}", issuer.trim_end_matches('/'))).map_err(invalid)?;
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may install a provider first, which is fine.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let client = Client::builder()
            .user_agent(concat!("tickfleet/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(options.answer_max)
            .build()
            .map_err(|error| invalid(format!("TLS setup failed ({error}); check ca-certificates or SSL_CERT_FILE")))?;
        Ok(Self::Issuer { client, name: issuer.to_owned(), discovery })
    }

    pub(super) async fn read(&self) -> Result<IssuerRead, String> {
        match self {
            Self::File(path) => {
                let failed = |error| format!("{}: {error}", path.display());
                let length = tokio::fs::metadata(path).await.map_err(failed)?.len();
                if length > SET_BYTES_MAX as u64 {
                    return Err(format!("{} has {length} bytes; at most {SET_BYTES_MAX} are read", path.display()));
                }
                let text = tokio::fs::read(path).await.map_err(failed)?;
                let keys = KeySet::parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))?;
                Ok(IssuerRead { keys, endpoints: Err("a file of keys names no endpoints".into()) })
            }
            Self::Issuer { client, name, discovery } => {
                let document = get(client, discovery.clone()).await?;
                let document: Discovery =
                    serde_json::from_slice(&document).map_err(|error| format!("{discovery}: {error}"))?;
                // The keys of one issuer must not verify the tokens of another (RFC 8414, section 3.3).
                if document.issuer != *name {
                    return Err(format!("{discovery} is for the issuer {:?}; expected {name:?}", document.issuer));
                }
                let endpoints = Endpoints::of(&document).map_err(|problem| format!("{discovery}: {problem}"));
                let url = trusted(&document.jwks_uri)?;
                let text = get(client, url.clone()).await?;
                let keys = KeySet::parse(&text).map_err(|problem| format!("{url}: {problem}"))?;
                Ok(IssuerRead { keys, endpoints })
            }
        }
    }
}

/// Responses must not be forged in transit: https, or http to this machine.
fn trusted(url: &str) -> Result<Url, String> {
    let url = Url::parse(url).map_err(|error| format!("{url:?}: {error}"))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if url.scheme() == "https" || (url.scheme() == "http" && is_here) {
        return Ok(url);
    }
    Err(format!("{url}: expected https, because a changed key in transit lets an attacker issue tokens"))
}

async fn get(client: &Client, url: Url) -> Result<Vec<u8>, String> {
    let failed = |error: reqwest::Error| format!("{url}: {}", root(&error));
    let answer = client.get(url.clone()).send().await.map_err(failed)?;
    if answer.status() != reqwest::StatusCode::OK {
        return Err(format!("{url} returned {}", answer.status()));
    }
    bounded_body(answer, SET_BYTES_MAX).await.map_err(|problem| format!("{url}: {problem}"))
}

pub(super) async fn bounded_body(response: Response, bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    let mut parts = response.bytes_stream();
    while let Some(part) = parts.next().await {
        body.extend_from_slice(&part.map_err(|error| root(&error))?);
        if body.len() > bytes_max {
            return Err(format!("it returned more than {bytes_max} bytes"));
        }
    }
    Ok(body)
}

/// Returns the innermost error. The outermost one reports only that a request failed.
pub(super) fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}
