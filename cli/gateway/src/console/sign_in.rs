//! Sign-in to the console at an identity provider. The routes need no key. [`complete`] exchanges the provider's code
//! for a token, and the console sends this token as its key.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header;
use axum::http::request::Parts;
use chrono::SecondsFormat;
use serde::{Deserialize, Serialize};

use crate::Shared;
use crate::problem::Problem;
use crate::serving::public::PublicUrl;
use crate::tokens::{CodeExchange, Tokens};

/// Codes of some providers have a few kilobytes.
pub(super) const BODY_BYTES_MAX: usize = 16 * 1024;
/// RFC 7636, section 4.1.
const VERIFIER_CHARS: std::ops::RangeInclusive<usize> = 43..=128;
const NONCE_CHARS: std::ops::RangeInclusive<usize> = 16..=128;
const EXPECTED: &str = "{\"code\": \"…\", \"verifier\": \"…\", \"nonce\": \"…\", \"redirect_uri\": \"…\"}";

#[derive(Debug, Serialize)]
pub(super) struct SignInOffer {
    /// `None` if users must enter a key or token.
    sign_in: Option<Provider>,
}

#[derive(Debug, Serialize)]
struct Provider {
    issuer: String,
    authorization_endpoint: String,
    client_id: String,
    scope: String,
    redirect_uri: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompleteRequest {
    code: String,
    verifier: String,
    nonce: String,
    redirect_uri: String,
}

#[derive(Serialize)]
pub(super) struct Session {
    token: String,
    expires: Option<String>,
}

pub(super) async fn offer(State(shared): State<Arc<Shared>>) -> Result<Json<SignInOffer>, Problem> {
    let Some((tokens, public)) = configured(&shared) else { return Ok(Json(SignInOffer { sign_in: None })) };
    let sign_in = tokens.authorization().await?.map(|authorization| Provider {
        issuer: tokens.issuer().to_owned(),
        authorization_endpoint: authorization.authorization_endpoint,
        client_id: authorization.client_id,
        scope: authorization.scope,
        redirect_uri: public.console(),
    });
    Ok(Json(SignInOffer { sign_in }))
}

pub(super) async fn complete(
    State(shared): State<Arc<Shared>>,
    parts: Parts,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Session>, Problem> {
    let (tokens, public) = configured(&shared).ok_or_else(Problem::no_sign_in)?;
    check_sender(&parts, public)?;
    let bytes = bytes.map_err(|rejection| invalid(&rejection.body_text()))?;
    let request: CompleteRequest = serde_json::from_slice(&bytes).map_err(|error| invalid(&error.to_string()))?;
    request.check(public)?;
    // A code is a credential. Guessing codes must not be faster than guessing keys.
    shared.invalid_credentials.check_rate(&parts, &request.code)?;
    let signed_in = sign_in(&shared, tokens, &request).await;
    match &signed_in {
        Ok(session) => shared.invalid_credentials.knows(&parts, &session.token),
        Err(problem) if problem.is_unauthorized() => shared.invalid_credentials.count(&parts, &request.code),
        Err(_) => {}
    }
    signed_in.map(Json)
}

async fn sign_in(shared: &Shared, tokens: &Tokens, request: &CompleteRequest) -> Result<Session, Problem> {
    let CompleteRequest { code, verifier, nonce, redirect_uri } = request;
    let token = tokens.exchange(CodeExchange { code, verifier, nonce, redirect_uri }).await?;
    let grant = shared.credentials.holder(&token).await?;
    tracing::info!(caller = grant.named(), "signed in to the console");
    let expires = grant.expires.map(|end| end.to_rfc3339_opts(SecondsFormat::Secs, true));
    Ok(Session { token, expires })
}

fn configured(shared: &Shared) -> Option<(&Tokens, &PublicUrl)> {
    shared.credentials.tokens.as_ref().zip(shared.public.as_ref())
}

fn check_sender(parts: &Parts, public: &PublicUrl) -> Result<(), Problem> {
    if parts.headers.get(header::ORIGIN).is_some_and(|origin| !public.is_origin(origin)) {
        return Err(Problem::forbidden(format!("sign in at {}", public.console())));
    }
    // Browsers send this content type to another site only after a preflight request. The gateway does not answer such
    // requests, so pages of other sites cannot send a code.
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_none_or(|kind| !kind.trim().eq_ignore_ascii_case("application/json")) {
        return Err(Problem::invalid("Content-Type: expected application/json"));
    }
    Ok(())
}

fn invalid(problem: &str) -> Problem {
    Problem::invalid(format!("expected {EXPECTED}: {problem}"))
}

impl CompleteRequest {
    fn check(&self, public: &PublicUrl) -> Result<(), Problem> {
        // The gateway must never exchange a code that the provider sent to another site.
        if self.redirect_uri != public.console() {
            return Err(Problem::invalid(format!("redirect_uri: expected {}", public.console())));
        }
        if self.code.is_empty() {
            return Err(Problem::invalid("code: expected a text"));
        }
        let is_unreserved = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~');
        for (name, value, chars) in [("verifier", &self.verifier, VERIFIER_CHARS), ("nonce", &self.nonce, NONCE_CHARS)]
        {
            if !chars.contains(&value.len()) || !value.chars().all(is_unreserved) {
                let (min, max) = chars.into_inner();
                return Err(Problem::invalid(format!("{name}: expected {min} to {max} letters, digits, - . _ or ~")));
            }
        }
        Ok(())
    }
}
