//! The authorization-code flow of OpenID Connect with PKCE. The gateway sends the code to the provider, because the
//! provider may require a client secret.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::Value;

use super::issuer::{Source, bounded_body, root};
use super::rules::Claims;
use super::{Tokens, refused};
use crate::problem::Problem;
use jsonwebtoken::errors::ErrorKind;

/// Without a bound, callers without a key could flood the issuer.
pub(super) const EXCHANGES_MAX: usize = 32;
/// Enough for three tokens.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;
/// Longer error codes of the token endpoint are not logged.
const ERROR_CHARS_MAX: usize = 64;

#[derive(Debug, Clone)]
pub struct SignInOptions {
    pub client_id: String,
    /// `None` for a public client.
    pub client_secret: Option<ClientSecret>,
    /// `openid` is always requested, too.
    pub scopes: Vec<String>,
}

impl SignInOptions {
    /// With these scopes, most providers add the user's name and email address to the token.
    pub const SCOPES: [&str; 2] = ["profile", "email"];

    fn scope(&self) -> String {
        let more = self.scopes.iter().map(String::as_str).filter(|scope| *scope != "openid");
        std::iter::once("openid").chain(more).collect::<Vec<_>>().join(" ")
    }
}

#[derive(Clone)]
pub struct ClientSecret(String);

impl ClientSecret {
    /// Removes white space around the text, such as the line break at the end of a file. `None` if the text is empty.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        Some(text.trim()).filter(|text| !text.is_empty()).map(|text| Self(text.to_owned()))
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(…)")
    }
}

#[derive(Debug, Clone)]
pub(crate) struct AuthorizationParameters {
    pub(crate) authorization_endpoint: String,
    pub(crate) client_id: String,
    pub(crate) scope: String,
}

/// The response to an authorization request, with the browser's secrets `verifier` and `nonce`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeExchange<'a> {
    pub(crate) code: &'a str,
    pub(crate) verifier: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) redirect_uri: &'a str,
}

#[derive(Deserialize)]
struct TokenResponse {
    id_token: Option<String>,
}

#[derive(Deserialize)]
struct TokenErrorResponse {
    error: String,
}

impl Tokens {
    pub(crate) async fn authorization(&self) -> Result<Option<AuthorizationParameters>, Problem> {
        let Some(sign_in) = &self.inner.options.sign_in else { return Ok(None) };
        let endpoints = self.inner.endpoints().await?;
        Ok(Some(AuthorizationParameters {
            authorization_endpoint: endpoints.authorization.to_string(),
            client_id: sign_in.client_id.clone(),
            scope: sign_in.scope(),
        }))
    }

    /// Returns a checked ID token (OpenID Connect Core 1.0, section 3.1.3.7). 401: the issuer rejects the code, or the
    /// ID token is invalid or belongs to another sign-in. 404: the gateway has no client at the issuer. 429: too many
    /// sign-ins at once. 500: the issuer rejects the gateway's client, or returns no ID token. 503: the issuer does not
    /// respond.
    pub(crate) async fn exchange(&self, exchange: CodeExchange<'_>) -> Result<String, Problem> {
        let (Some(sign_in), Source::Issuer { client, .. }) = (&self.inner.options.sign_in, &self.inner.source) else {
            return Err(Problem::no_sign_in());
        };
        let Ok(_permit) = self.inner.exchange_permits.try_acquire() else { return Err(Problem::too_many_sign_ins()) };
        let endpoints = self.inner.endpoints().await?;
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", exchange.code),
            ("code_verifier", exchange.verifier),
            ("redirect_uri", exchange.redirect_uri),
        ];
        let mut request = client.post(endpoints.token.clone());
        match &sign_in.client_secret {
            Some(secret) if !endpoints.takes_secret_in_body => {
                request = request.header(AUTHORIZATION, basic(&sign_in.client_id, secret)?);
            }
            Some(ClientSecret(secret)) => {
                form.extend([("client_id", sign_in.client_id.as_str()), ("client_secret", secret.as_str())]);
            }
            None => form.push(("client_id", sign_in.client_id.as_str())),
        }
        let request = request
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json")
            .body(form_encoded(&form));
        let unavailable = |problem: String| {
            tracing::warn!(problem, "the issuer's token endpoint does not respond; a sign-in failed");
            Problem::sign_in_unavailable()
        };
        let response = request.send().await.map_err(|error| unavailable(root(&error)))?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(unavailable(format!("it returned {status}")));
        }
        let body = bounded_body(response, RESPONSE_BYTES_MAX).await.map_err(unavailable)?;
        if status != StatusCode::OK {
            return Err(rejected(status, &body));
        }
        let response = serde_json::from_slice::<TokenResponse>(&body).ok();
        let Some(token) = response.and_then(|response| response.id_token) else {
            tracing::error!("the issuer's token endpoint returned no ID token; a sign-in failed");
            return Err(Problem::sign_in_misconfigured("it returned no ID token"));
        };
        let claims = self.verified(&token).await?;
        check_id_token(&claims, &sign_in.client_id, exchange.nonce)?;
        Ok(token)
    }
}

/// RFC 6749, section 5.2.
fn rejected(status: StatusCode, body: &[u8]) -> Problem {
    let error = serde_json::from_slice::<TokenErrorResponse>(body).map(|response| response.error).unwrap_or_default();
    // Another server sent this text. Only an error code is safe in a log line: a description may repeat the request.
    let is_code = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_plain = !error.is_empty() && error.len() <= ERROR_CHARS_MAX && error.chars().all(is_code);
    let error = if is_plain { error } else { format!("status {}", status.as_u16()) };
    if error == "invalid_grant" {
        return Problem::unauthorized(
            "the identity provider rejected the code of this sign-in: it has expired, was already used, or belongs to another sign-in; sign in again",
        );
    }
    tracing::error!(error, "the issuer's token endpoint rejected the gateway's request; a sign-in failed");
    Problem::sign_in_misconfigured(&format!("it returned {error}"))
}

fn check_id_token(claims: &Claims, client_id: &str, nonce: &str) -> Result<(), Problem> {
    let is_client = |value: &Value| value.as_str() == Some(client_id);
    let is_audience = match claims.get("aud") {
        Some(Value::Array(all)) => all.iter().any(is_client),
        Some(one) => is_client(one),
        None => false,
    };
    if !is_audience || claims.get("azp").is_some_and(|party| !is_client(party)) {
        return Err(refused(&ErrorKind::InvalidAudience));
    }
    // A token of another sign-in could belong to another user.
    if claims.get("nonce").and_then(Value::as_str) != Some(nonce) {
        return Err(Problem::unauthorized("invalid token: it belongs to another sign-in (nonce); sign in again"));
    }
    Ok(())
}

/// RFC 6749, section 2.3.1. The value is marked as sensitive, so HTTP libraries do not log it.
fn basic(client_id: &str, ClientSecret(secret): &ClientSecret) -> Result<HeaderValue, Problem> {
    let credentials = STANDARD.encode(format!("{}:{}", encoded(client_id), encoded(secret)));
    let mut value = HeaderValue::try_from(format!("Basic {credentials}"))
        .map_err(|_| Problem::sign_in_misconfigured("the client secret is unusable"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn form_encoded(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

fn encoded(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_encoded_for_the_request_and_absent_from_debug_output() {
        let secret = ClientSecret::new("a b:ü/+\n").unwrap();
        let header = basic("con sole", &secret).unwrap();
        let sent = header.to_str().unwrap().strip_prefix("Basic ").unwrap();
        assert_eq!(STANDARD.decode(sent).unwrap(), b"con%20sole:a%20b%3A%C3%BC%2F%2B");
        assert!(header.is_sensitive());
        assert_eq!(form_encoded(&[("a", "1&b=2"), ("c", "~._-")]), "a=1%26b%3D2&c=~._-");
        let options = SignInOptions { client_id: "console".into(), client_secret: Some(secret), scopes: Vec::new() };
        let shown = format!("{options:?}");
        assert!(shown.contains("console") && !shown.contains("a b"), "{shown}");
        assert!(ClientSecret::new(" \n").is_none());
    }

    #[test]
    fn an_id_token_of_another_client_or_sign_in_is_rejected() {
        let check = |claims: Value| {
            let Value::Object(claims) = claims else { panic!("no claims: {claims}") };
            check_id_token(&claims, "console", "n-1").map_err(|problem| problem.summary().0.to_owned())
        };
        for good in [
            json!({"aud": "console", "nonce": "n-1"}),
            json!({"aud": ["console"], "azp": "console", "nonce": "n-1"}),
            json!({"aud": ["fleet", "console"], "azp": "console", "nonce": "n-1"}),
        ] {
            assert_eq!(check(good.clone()), Ok(()), "{good}");
        }
        for (bad, why) in [
            (json!({"aud": "fleet", "nonce": "n-1"}), "another service"),
            (json!({"aud": ["fleet"], "nonce": "n-1"}), "another service"),
            (json!({"aud": {"console": true}, "nonce": "n-1"}), "another service"),
            (json!({"nonce": "n-1"}), "another service"),
            (json!({"aud": "console", "azp": "shop", "nonce": "n-1"}), "another service"),
            (json!({"aud": "console", "nonce": "n-2"}), "another sign-in"),
            (json!({"aud": "console", "nonce": ["n-1"]}), "another sign-in"),
            (json!({"aud": "console"}), "another sign-in"),
        ] {
            assert!(check(bad.clone()).unwrap_err().contains(why), "{bad}");
        }
    }

    #[test]
    fn only_an_invalid_grant_is_the_users_to_repeat() {
        let status = |body: &str| {
            let problem = rejected(StatusCode::BAD_REQUEST, body.as_bytes());
            (problem.is_unauthorized(), problem.summary().0.to_owned())
        };
        assert!(status(r#"{"error": "invalid_grant", "error_description": "code tfc_17"}"#).0);
        for (body, shown) in [
            (r#"{"error": "invalid_client"}"#, "it returned invalid_client"),
            (r#"{"error": "<b>no</b>"}"#, "it returned status 400"),
            (r#"{"error": ""}"#, "it returned status 400"),
            ("<html>", "it returned status 400"),
        ] {
            let (is_unauthorized, message) = status(body);
            assert!(!is_unauthorized && message.contains(shown), "{body}: {message}");
        }
    }
}
