//! Tokens of an identity provider (OpenID Connect, JWT), as an alternative to API keys.
//!
//! START HERE: [`Tokens::holder`] converts a token to a [`Grant`]. The process reads the keys every few minutes, and
//! earlier if a token names an unknown key. Reads are at least [`TokenOptions::keys_rest`] apart, so that tokens cannot
//! flood the issuer with requests.

mod issuer;
mod keyset;
mod rules;
mod sign_in;
mod signature;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use chrono::{DateTime, Utc};
pub use jsonwebtoken::Algorithm;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Header, Validation, decode, decode_header};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::keys::ID_CHARS_MAX;
use crate::problem::Problem;
use crate::verbs::Grant;
use issuer::{Endpoints, IssuerRead, Source};
use keyset::KeySet;
use rules::{Claims, GrantRules, claim, text};
pub(crate) use sign_in::CodeExchange;
pub use sign_in::{ClientSecret, SignInOptions};

/// Tokens of the largest providers have a few kilobytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Reading the keys takes two responses: the discovery document and the keys.
const ANSWERS: u32 = 2;
const WAITERS_MAX: usize = 256;
/// A revoked key is accepted until the next read.
const READ_EVERY: Duration = Duration::from_secs(300);
/// The wait after a failed read, if no token requires a read earlier.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// Interval of checks of the rules; also the shortest interval between reads of a key file.
const POLL_EVERY: Duration = Duration::from_secs(1);
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct TokenOptions {
    /// The `iss` of the tokens, which is also the URL of the issuer.
    pub issuer: String,
    /// A file with a JSON Web Key Set. Without a file, the keys are fetched from the issuer.
    pub jwks: Option<PathBuf>,
    /// A token needs one of these `aud` values.
    pub audience: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    /// This claim has the holder's id for the audit log.
    pub name_claim: String,
    pub leeway: Duration,
    pub rules: PathBuf,
    /// Shortest interval between two reads of the keys.
    pub keys_rest: Duration,
    /// The time limit of one response of the issuer, from connecting to the last byte.
    pub answer_max: Duration,
    /// ID tokens of this client are accepted as if `audience` named the client.
    pub sign_in: Option<SignInOptions>,
}

impl TokenOptions {
    /// All have public keys: RSA with SHA-256, ECDSA with P-256, Ed25519.
    pub const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    pub const LEEWAY: Duration = Duration::from_secs(30);
    /// More would defeat short token lifetimes.
    pub const LEEWAY_MAX: Duration = Duration::from_secs(300);
    pub const KEYS_COOLDOWN: Duration = Duration::from_secs(10);
    pub const ANSWER_MAX: Duration = Duration::from_secs(5);
}

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the issuer {issuer}: {problem}")]
    Issuer { issuer: String, problem: String },
    #[error("the file of rules for tokens {path}: {problem}")]
    Rules { path: String, problem: String },
    #[error("{0}")]
    Options(&'static str),
}

#[derive(Debug, Clone, Copy)]
struct KeyRead {
    number: u64,
    phase: KeyReadPhase,
    failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyReadPhase {
    Reading,
    /// Ignores requests until the shortest interval between reads is over.
    Cooldown,
    Idle,
}

#[derive(Debug, Clone)]
pub struct Tokens {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: TokenOptions,
    source: Source,
    keys: ArcSwap<KeySet>,
    /// `None` until the issuer's metadata is read, or if the metadata is unusable for sign-in.
    endpoints: ArcSwapOption<Endpoints>,
    rules: ArcSwap<GrantRules>,
    key_read: watch::Sender<KeyRead>,
    key_requested: Notify,
    waiter_permits: Semaphore,
    exchange_permits: Semaphore,
    /// Requests that wait for the endpoints have no key, so they must not take the permits of requests with tokens.
    endpoint_permits: Semaphore,
}

impl Tokens {
    pub fn open(mut options: TokenOptions) -> Result<Self, TokenError> {
        if options.audience.is_empty() || options.audience.iter().any(String::is_empty) {
            return Err(TokenError::Options("set an audience: tokens for other services must not be accepted"));
        }
        if options.algorithms.is_empty()
            || options.algorithms.iter().any(|one| one.family() == jsonwebtoken::AlgorithmFamily::Hmac)
        {
            return Err(TokenError::Options("algorithms: expected at least one, all for public keys"));
        }
        if options.leeway > TokenOptions::LEEWAY_MAX {
            return Err(TokenError::Options("the clock leeway is at most 5 minutes"));
        }
        if let Some(sign_in) = &options.sign_in {
            if options.jwks.is_some() {
                return Err(TokenError::Options(
                    "sign-in at the console needs the issuer's metadata: remove the file of keys",
                ));
            }
            if sign_in.client_id.is_empty() {
                return Err(TokenError::Options("the client id is empty"));
            }
            if !options.audience.contains(&sign_in.client_id) {
                options.audience.push(sign_in.client_id.clone());
            }
        }
        signature::install();
        let source = Source::of(&options)?;
        let rules = read_rules(&options.rules).and_then(|text| parse_rules(&options.rules, &text))?;
        let key_read = watch::Sender::new(KeyRead { number: 0, phase: KeyReadPhase::Reading, failed: false });
        let key_requested = Notify::new();
        let inner = Inner {
            options,
            source,
            keys: ArcSwap::default(),
            endpoints: ArcSwapOption::empty(),
            rules: ArcSwap::from_pointee(rules),
            key_read,
            key_requested,
            waiter_permits: Semaphore::new(WAITERS_MAX),
            exchange_permits: Semaphore::new(sign_in::EXCHANGES_MAX),
            endpoint_permits: Semaphore::new(sign_in::EXCHANGES_MAX),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.inner.options.issuer
    }

    pub async fn follow(self, stop: CancellationToken) {
        let keys = async {
            loop {
                self.inner.read_keys().await;
                self.inner.wait_for_next_read().await;
            }
        };
        let both = async { tokio::join!(keys, self.inner.follow_rules()) };
        stop.run_until_cancelled(both).await;
    }

    /// 401: the token is invalid. 403: the token is valid, but grants nothing. 503: the issuer's keys are unavailable.
    pub(crate) async fn holder(&self, token: &str) -> Result<Grant, Problem> {
        let claims = self.verified(token).await?;
        self.inner.granted(&claims)
    }

    async fn verified(&self, token: &str) -> Result<Claims, Problem> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Problem::unauthorized(format!("a token has at most {TOKEN_BYTES_MAX} bytes")));
        }
        let header =
            decode_header(token).map_err(|_| Problem::unauthorized("this is neither an API key nor a signed token"))?;
        self.inner.acceptable(&header)?;
        self.inner.claims(token, &header).await
    }
}

impl Inner {
    fn acceptable(&self, header: &Header) -> Result<(), Problem> {
        if !self.options.algorithms.contains(&header.alg) {
            return Err(Problem::unauthorized(format!(
                "tokens that are signed with {:?} are not accepted",
                header.alg
            )));
        }
        // Critical fields must be understood, and none are supported (RFC 7515, section 4.1.11).
        if header.crit.is_some() {
            return Err(Problem::unauthorized("tokens with critical header fields are not accepted"));
        }
        let kind = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !["jwt", "at+jwt"].contains(&kind.trim_start_matches("application/")) {
            return Err(Problem::unauthorized("this type of token does not authorize requests"));
        }
        Ok(())
    }

    async fn claims(&self, token: &str, header: &Header) -> Result<Claims, Problem> {
        if let Some(checked) = self.checked(token, header) {
            return checked;
        }
        let key_read = self.request_keys().await;
        if let Some(checked) = self.checked(token, header) {
            return checked;
        }
        if key_read.failed || key_read.number == 0 {
            return Err(Problem::issuer_unavailable());
        }
        Err(Problem::unauthorized("this token is signed with an unknown key of its issuer"))
    }

    /// `None` if the key that the token names is unknown.
    fn checked(&self, token: &str, header: &Header) -> Option<Result<Claims, Problem>> {
        let keys = self.keys.load();
        let key = match keys.find(header.kid.as_deref(), header.alg)? {
            Ok(key) => key,
            Err(()) => {
                return Some(Err(Problem::unauthorized("the key that this token names is for another algorithm")));
            }
        };
        let mut wanted = Validation::new(header.alg);
        wanted.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        wanted.set_issuer(&[&self.options.issuer]);
        wanted.set_audience(&self.options.audience);
        wanted.validate_nbf = true;
        wanted.leeway = self.options.leeway.as_secs();
        Some(decode::<Claims>(token, key, &wanted).map(|good| good.claims).map_err(|error| refused(error.kind())))
    }

    fn granted(&self, claims: &Claims) -> Result<Grant, Problem> {
        // The library also accepts a list of issuers in `iss`. The gateway requires a text.
        if claims.get("iss").and_then(Value::as_str) != Some(self.options.issuer.as_str()) {
            return Err(refused(&ErrorKind::InvalidIssuer));
        }
        // Only the owner of a key may use this token, and the gateway cannot check the owner (RFC 7800).
        if claims.contains_key("cnf") {
            return Err(Problem::unauthorized("tokens that are bound to the sender's key are not accepted"));
        }
        let id = self.name(claims).map_err(Problem::forbidden)?;
        let mut grant = self.rules.load().grant(id, claims).map_err(Problem::forbidden)?;
        grant.expires = Some(ends(claims, self.options.leeway));
        Ok(grant)
    }

    fn name(&self, claims: &Claims) -> Result<String, String> {
        let name = text(claims, &self.options.name_claim)?;
        // Users can write any address into their profile, so an unverified address must not become their id. Some
        // issuers write `email_verified` as a text.
        let is_verified = |value: &Value| *value == true || *value == "true";
        if self.options.name_claim == "email"
            && claim(claims, "email_verified").is_some_and(|value| !is_verified(value))
        {
            return Err("the email address of this token's user is not verified".into());
        }
        if name.chars().count() > ID_CHARS_MAX || !name.chars().all(|c| c.is_alphanumeric() || c.is_ascii_graphic()) {
            let claim = &self.options.name_claim;
            return Err(format!("the claim {claim:?}: expected 1 to {ID_CHARS_MAX} letters, digits and punctuation"));
        }
        Ok(name.to_owned())
    }

    /// Returns at once in the cooldown: the content of tokens must not decide how often the issuer is queried.
    async fn request_keys(&self) -> KeyRead {
        let mut key_reads = self.key_read.subscribe();
        let now = *key_reads.borrow_and_update();
        self.key_requested.notify_one();
        if now.phase == KeyReadPhase::Cooldown {
            return now;
        }
        let Ok(_one_of_few) = self.waiter_permits.try_acquire() else { return now };
        match tokio::time::timeout(
            self.options.answer_max * ANSWERS,
            key_reads.wait_for(|key_read| key_read.number > now.number),
        )
        .await
        {
            Ok(Ok(key_read)) => *key_read,
            _ => KeyRead { failed: true, ..now },
        }
    }

    /// 503: the issuer's metadata is not read yet, or names no usable endpoints.
    async fn endpoints(&self) -> Result<Arc<Endpoints>, Problem> {
        if let Some(endpoints) = self.endpoints.load_full() {
            return Ok(endpoints);
        }
        let Ok(_one_of_few) = self.endpoint_permits.try_acquire() else { return Err(Problem::sign_in_unavailable()) };
        self.request_keys().await;
        self.endpoints.load_full().ok_or_else(Problem::sign_in_unavailable)
    }

    fn store_endpoints(&self, endpoints: Result<Endpoints, String>) {
        if self.options.sign_in.is_none() {
            return;
        }
        if let Err(problem) = &endpoints {
            tracing::warn!(problem, "the issuer's metadata permits no sign-in at the console");
        }
        self.endpoints.store(endpoints.ok().map(Arc::new));
    }

    async fn read_keys(&self) {
        self.key_read.send_modify(|key_read| key_read.phase = KeyReadPhase::Reading);
        let read = self.source.read().await;
        let failed = read.is_err();
        match read {
            Ok(IssuerRead { keys, endpoints }) => {
                self.store_endpoints(endpoints);
                let before = self.key_read.borrow().failed || self.key_read.borrow().number == 0;
                if before || keys.len() != self.keys.load().len() {
                    let used = keys.len();
                    let skipped = keys.skipped;
                    tracing::info!(issuer = self.options.issuer, keys = used, skipped, "read the issuer's keys");
                }
                self.keys.store(Arc::new(keys));
            }
            Err(problem) => {
                let known = self.keys.load().len();
                tracing::warn!(problem, known, "failed to read the issuer's keys; the known keys stay in force");
            }
        }
        self.key_read.send_modify(|key_read| {
            *key_read = KeyRead { number: key_read.number + 1, phase: KeyReadPhase::Cooldown, failed }
        });
    }

    async fn wait_for_next_read(&self) {
        let (cooldown, every) = match self.source {
            Source::File(_) => (POLL_EVERY, FILE_CHECK_INTERVAL),
            Source::Issuer { .. } if self.key_read.borrow().failed => (self.options.keys_rest, TRY_AGAIN),
            Source::Issuer { .. } => (self.options.keys_rest, READ_EVERY),
        };
        tokio::time::sleep(cooldown).await;
        self.key_read.send_modify(|key_read| key_read.phase = KeyReadPhase::Idle);
        // A timeout or a request starts the next read.
        let _ = tokio::time::timeout(every, self.key_requested.notified()).await;
    }

    /// Rejects a removed permission about a second after the file changes.
    async fn follow_rules(&self) {
        let path = &self.options.rules;
        let mut known = read_rules(path).ok();
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            let found = read_rules(path);
            let text = found.as_ref().ok().cloned();
            if text == known {
                continue;
            }
            known = text;
            match found.and_then(|text| parse_rules(path, &text)) {
                Ok(rules) => {
                    tracing::info!(rules = rules.len(), "token rules reloaded");
                    self.rules.store(Arc::new(rules));
                }
                Err(error) => tracing::error!(%error, "token rules not reloaded; the previous rules stay in force"),
            }
        }
    }
}

/// Adds the leeway. A time beyond the calendar becomes the latest possible time.
fn ends(claims: &Claims, leeway: Duration) -> DateTime<Utc> {
    let seconds = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() + leeway.as_secs_f64();
    #[allow(clippy::cast_possible_truncation, reason = "a number that is too large becomes the largest")]
    let end = DateTime::from_timestamp(seconds as i64, 0);
    end.unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn refused(why: &ErrorKind) -> Problem {
    let words = match why {
        ErrorKind::ExpiredSignature => "it has expired",
        ErrorKind::ImmatureSignature => "it is not valid yet",
        ErrorKind::InvalidAudience => "it is for another service",
        ErrorKind::InvalidIssuer => "another issuer issued it",
        ErrorKind::InvalidSignature => "its signature does not match",
        ErrorKind::MissingRequiredClaim(claim) => {
            return Problem::unauthorized(format!("invalid token: it has no claim {claim:?}"));
        }
        _ => "it is unreadable",
    };
    Problem::unauthorized(format!("invalid token: {words}"))
}

fn read_rules(path: &Path) -> Result<String, TokenError> {
    let failed = |problem: String| TokenError::Rules { path: path.display().to_string(), problem };
    let length = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if length > rules::FILE_BYTES_MAX {
        return Err(failed(format!("it has {length} bytes; at most {} are read", rules::FILE_BYTES_MAX)));
    }
    std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))
}

fn parse_rules(path: &Path, text: &str) -> Result<GrantRules, TokenError> {
    GrantRules::parse(text).map_err(|problem| TokenError::Rules { path: path.display().to_string(), problem })
}
