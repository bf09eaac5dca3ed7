//! Signing in with OAuth 2, by client credentials (RFC 6749, section 4.4) or refresh token (section 6).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tickfleet_config::tools::{ClientAuth, Grant, OAuth2Def};
use tickfleet_outbound::Guard;
use tickfleet_tools::{DeclarationError, Environment, Secrets, ToolFailure, percent};

use super::client::{Client, Request, SendError};
use super::error::field;
use super::outcome;
use super::template::{Template, TemplatePosition, Values};

/// The maximum bytes of a response. Tokens have a few kilobytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const CODE_BYTES_MAX: usize = 64;
const LIFE_DEFAULT: Duration = Duration::from_secs(300);
const LIFE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Workers stop using a token this long before its expiry: it must still be valid when the request arrives.
const MARGIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct OAuth2 {
    grant: Grant,
    token_url: Url,
    client_auth: ClientAuth,
    client_id: Template,
    client_secret: Option<Template>,
    refresh_token: Option<Template>,
    fields: Vec<(String, Template)>,
}

impl OAuth2 {
    pub(super) fn new(def: &OAuth2Def, environment: &Environment, guard: &Guard) -> Result<Self, DeclarationError> {
        let template = |name: &str, text: &str| Template::parse(text).map_err(field(format!("oauth2.{name}")));
        let optional = |name: &str, text: &Option<String>| text.as_deref().map(|t| template(name, t)).transpose();
        let token_url = Url::parse(&environment.expand(&def.token_url)?).map_err(|e| e.to_string());
        let token_url = token_url.map_err(field("oauth2.token_url"))?;
        guard.check(&token_url).map_err(|refused| field("oauth2.token_url")(refused.to_string()))?;
        let mut fields = Vec::new();
        for (name, text) in
            def.scope.iter().map(|scope| ("scope", scope)).chain(def.params.iter().map(|(n, t)| (n.as_str(), t)))
        {
            fields.push((name.to_owned(), template(name, text)?));
        }
        Ok(Self {
            grant: def.grant,
            token_url,
            client_auth: def.client_auth,
            client_id: template("client_id", &def.client_id)?,
            client_secret: optional("client_secret", &def.client_secret)?,
            refresh_token: optional("refresh_token", &def.refresh_token)?,
            fields,
        })
    }

    /// Fills in the secrets. The error names the missing secret.
    pub(super) fn credentials(&self, values: &Values<'_>) -> Result<Credentials, String> {
        let text = |template: &Template| template.render(values, TemplatePosition::Text).map(Option::unwrap_or_default);
        let secret =
            |template: &Option<Template>| template.as_ref().map(|t| text(t).map(SecretString::from)).transpose();
        let fields = self.fields.iter().map(|(name, template)| Ok((name.clone(), SecretString::from(text(template)?))));
        Ok(Credentials {
            grant: self.grant,
            token_url: self.token_url.clone(),
            client_auth: self.client_auth,
            client_id: SecretString::from(text(&self.client_id)?),
            client_secret: secret(&self.client_secret)?,
            refresh_token: secret(&self.refresh_token)?,
            fields: fields.collect::<Result<_, String>>()?,
        })
    }
}

pub struct Credentials {
    grant: Grant,
    token_url: Url,
    client_auth: ClientAuth,
    client_id: SecretString,
    client_secret: Option<SecretString>,
    refresh_token: Option<SecretString>,
    fields: Vec<(String, SecretString)>,
}

/// Identifies a sign-in, but contains no secrets.
pub(super) type SignInDigest = [u8; 32];

pub struct TokenGrant {
    pub token: SecretString,
    /// Time from now during which the token may be used.
    pub life: Duration,
    /// Replaces the refresh token that was just used.
    pub refresh_token: Option<SecretString>,
}

impl Credentials {
    /// For tools that store their grants themselves. A public client has no secret.
    #[must_use]
    pub fn refreshing(
        token_url: Url,
        client_id: SecretString,
        client_secret: Option<SecretString>,
        refresh_token: SecretString,
    ) -> Self {
        Self {
            grant: Grant::RefreshToken,
            token_url,
            client_auth: ClientAuth::Basic,
            client_id,
            client_secret,
            refresh_token: Some(refresh_token),
            fields: Vec::new(),
        }
    }

    /// Different secrets, such as those of two tenants, give different digests.
    pub(super) fn identity(&self) -> SignInDigest {
        let expose = |secret: &Option<SecretString>| secret.as_ref().map(|s| s.expose_secret().to_owned());
        let fields: Vec<_> = self.fields.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect();
        let whole = json!([
            format!("{:?} {:?}", self.grant, self.client_auth),
            self.token_url.as_str(),
            self.client_id.expose_secret(),
            expose(&self.client_secret),
            expose(&self.refresh_token),
            fields,
        ]);
        Sha256::digest(whole.to_string().as_bytes()).into()
    }

    /// `rotated` replaces the declared refresh token. Only an unavailable service is a transient failure.
    pub async fn request_grant(
        &self,
        client: &Client,
        rotated: Option<&SecretString>,
    ) -> Result<TokenGrant, ToolFailure> {
        let request = self.request(rotated).map_err(outcome::permanent)?;
        let answer = client.send(request, 0, &Secrets::default()).await.map_err(unanswered)?;
        parse_grant(answer).await
    }

    fn request(&self, rotated: Option<&SecretString>) -> Result<Request, String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        let encoded = |text: &SecretString| percent::percent_encoded(text.expose_secret(), "");
        let grant = match self.grant {
            Grant::ClientCredentials => "client_credentials",
            Grant::RefreshToken => "refresh_token",
        };
        let mut form = vec![format!("grant_type={grant}")];
        form.extend(rotated.or(self.refresh_token.as_ref()).map(|token| format!("refresh_token={}", encoded(token))));
        form.extend(
            self.fields
                .iter()
                .map(|(name, value)| format!("{}={}", percent::percent_encoded(name, ""), encoded(value))),
        );
        match (&self.client_secret, self.client_auth) {
            (Some(secret), ClientAuth::Basic) => {
                let pair = STANDARD.encode(format!("{}:{}", encoded(&self.client_id), encoded(secret)));
                let value = HeaderValue::try_from(format!("Basic {pair}"));
                let mut value = value.map_err(|_| "The client's id and password form no valid header.".to_owned())?;
                value.set_sensitive(true);
                headers.insert(header::AUTHORIZATION, value);
            }
            // A public client identifies itself in the body.
            (secret, _) => {
                form.push(format!("client_id={}", encoded(&self.client_id)));
                form.extend(secret.as_ref().map(|secret| format!("client_secret={}", encoded(secret))));
            }
        }
        let method = Method::POST;
        let url = self.token_url.clone();
        let body = Some(form.join("&").into());
        Ok(Request { method, url, headers, body, body_is_secret: true })
    }
}

/// The tool's own request was never sent, so the call counts as not executed.
fn away(why: &str, retry_after: Option<Duration>) -> ToolFailure {
    ToolFailure::Transient { message: format!("The tool could not sign in: {why}."), retry_after, not_executed: true }
}

fn refused(why: &str) -> ToolFailure {
    outcome::permanent(format!("The tool could not sign in: {why}. The fleet's operator has to fix it."))
}

fn unanswered(error: SendError) -> ToolFailure {
    match error {
        SendError::Blocked(why) => refused(&why.to_string()),
        SendError::Redirect(_) => refused("its token service answered with a redirect"),
        SendError::NotSent { host, why } | SendError::Lost { host, why } => {
            away(&format!("no answer from {host}: {why}"), None)
        }
    }
}

/// A successful response of the token service (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct Grants {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<Value>,
    refresh_token: Option<String>,
}

pub(super) async fn parse_grant(mut answer: Response) -> Result<TokenGrant, ToolFailure> {
    let status = answer.status().as_u16();
    let body = tickfleet_outbound::read_body(&mut answer, ANSWER_BYTES_MAX).await;
    if status != 200 {
        let code = body.ok().and_then(|body| code(&body)).map(|code| format!(" ({code})")).unwrap_or_default();
        let why = format!("its token service answered with status {status}{code}");
        return Err(match status {
            408 | 425 | 429 | 500..=599 => away(&why, tickfleet_outbound::retry_after(answer.headers())),
            _ => refused(&why),
        });
    }
    let body = body.map_err(|_| away("the token service's answer is incomplete", None))?;
    // The body contains a token, so the error does not quote the body.
    let grants: Grants = serde_json::from_slice(&body).map_err(|_| refused("its token service granted no token"))?;
    if grants.token_type.as_deref().is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err(refused("its token service grants no bearer tokens"));
    }
    if grants.access_token.is_empty() || HeaderValue::from_str(&grants.access_token).is_err() {
        return Err(refused("its token service granted no usable token"));
    }
    Ok(TokenGrant {
        life: life(grants.expires_in.as_ref()),
        token: SecretString::from(grants.access_token),
        refresh_token: grants.refresh_token.filter(|token| !token.is_empty()).map(SecretString::from),
    })
}

/// The code of an error response (RFC 6749, section 5.2). Messages contain no other part of the response.
fn code(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let code = body.get("error")?.as_str()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (code.len() <= CODE_BYTES_MAX && code.chars().all(plain)).then(|| code.to_owned())
}

/// The token's lifetime minus a margin, which is at most half of the lifetime.
fn life(expires_in: Option<&Value>) -> Duration {
    // Some services send the number as text.
    let seconds = expires_in.and_then(|e| e.as_u64().or_else(|| e.as_str()?.parse().ok()));
    let life = seconds.map_or(LIFE_DEFAULT, Duration::from_secs).min(LIFE_MAX);
    life - MARGIN.min(life / 2)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn credentials(client_auth: ClientAuth, refresh_token: Option<&str>) -> Credentials {
        Credentials {
            grant: if refresh_token.is_some() { Grant::RefreshToken } else { Grant::ClientCredentials },
            token_url: Url::parse("https://id.example.com/token").unwrap(),
            client_auth,
            client_id: SecretString::from("me:1"),
            client_secret: Some(SecretString::from("p&w d")),
            refresh_token: refresh_token.map(SecretString::from),
            fields: vec![("scope".into(), SecretString::from("a b"))],
        }
    }

    #[test]
    fn a_token_request_is_encoded_as_the_rfc_requires() {
        let basic = credentials(ClientAuth::Basic, None).request(None).unwrap();
        assert_eq!(basic.body.as_deref(), Some(&b"grant_type=client_credentials&scope=a%20b"[..]));
        let expected = format!("Basic {}", STANDARD.encode("me%3A1:p%26w%20d"));
        assert_eq!(basic.headers[header::AUTHORIZATION], expected);
        assert!(basic.headers[header::AUTHORIZATION].is_sensitive());
        let body = credentials(ClientAuth::Body, Some("r=1")).request(Some(&SecretString::from("r2"))).unwrap();
        let form = "grant_type=refresh_token&refresh_token=r2&scope=a%20b&client_id=me%3A1&client_secret=p%26w%20d";
        let form = Some(form.as_bytes());
        assert_eq!((body.body.as_deref(), body.headers.get(header::AUTHORIZATION)), (form, None));
    }

    #[test]
    fn a_token_is_not_used_in_its_last_seconds() {
        let seconds = |value: Value| life(Some(&value)).as_secs();
        assert_eq!((seconds(json!(3600)), seconds(json!("3600"))), (3570, 3570));
        assert_eq!((seconds(json!(20)), seconds(json!(0))), (10, 0));
        assert_eq!(seconds(json!(u64::MAX)), LIFE_MAX.as_secs() - MARGIN.as_secs());
        assert_eq!((life(None).as_secs(), seconds(json!("soon"))), (270, 270));
    }

    #[test]
    fn a_different_secret_gives_a_different_identity() {
        let one = credentials(ClientAuth::Basic, None);
        let mut other = credentials(ClientAuth::Basic, None);
        assert_eq!(one.identity(), other.identity());
        other.client_secret = Some(SecretString::from("p&w e"));
        assert_ne!(one.identity(), other.identity());
        assert_ne!(one.identity(), credentials(ClientAuth::Body, None).identity());
    }

    #[test]
    fn a_token_error_exposes_only_its_code() {
        assert_eq!(
            code(br#"{"error":"invalid_client","error_description":"secret p&w"}"#),
            Some("invalid_client".into())
        );
        for odd in [&b"<html>"[..], br#"{"error":{"a":1}}"#, br#"{"error":"no such client p&w"}"#] {
            assert_eq!(code(odd), None);
        }
    }
}
