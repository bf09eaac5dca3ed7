//! Tokens of an identity provider (OpenID Connect, JWT) in place of API keys: who signed one, for whom, until when, and what
//! its claims grant here.
//!
//! START HERE: [`Tokens::holder`] is a token from its text to a [`Grant`]. `keyset` is the issuer's public keys and
//! `issuer` where they come from, `signature` who checks with them, `rules` what claims grant.
//!
//! Keys are read by one task of the process, every few minutes, and sooner where a token names one that is not known: but
//! never more often than [`TokenOptions::keys_rest`], whatever tokens name. What was read stays in force while the issuer
//! is away.

mod issuer;
mod keyset;
mod rules;
mod signature;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
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
use issuer::Source;
use keyset::KeySet;
use rules::{Claims, Rules, claim, text};

/// Bytes of a token: those of the largest providers have some kilobytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// So many answers an issuer gives while its keys are read: what it says of itself, and the keys.
const ANSWERS: u32 = 2;
/// So many requests wait for that at once.
const WAITERS_MAX: usize = 256;
/// Keys are read again after so long, without being asked to: one that was taken back is refused then.
const READ_EVERY: Duration = Duration::from_secs(300);
/// After an attempt that failed.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// A file of rules is looked at so often, and one of keys at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A file of keys, where no token names a key that is not in it.
const LOOK_FILE_EVERY: Duration = Duration::from_secs(10);

/// Whose tokens are taken, and what they grant.
#[derive(Debug, Clone)]
pub struct TokenOptions {
    /// The `iss` of the tokens, and the address of the issuer.
    pub issuer: String,
    /// A file with the issuer's public keys (JSON Web Key Set); without it they are fetched from the issuer.
    pub jwks: Option<PathBuf>,
    /// The `aud` of tokens for this gateway: one of these.
    pub audience: Vec<String>,
    /// How they may be signed.
    pub algorithms: Vec<Algorithm>,
    /// The claim that says who acts, for the audit log.
    pub name_claim: String,
    /// By so much the clocks of issuer and gateway may differ.
    pub leeway: Duration,
    /// The file of rules.
    pub rules: PathBuf,
    /// The shortest time between two times that keys are read.
    pub keys_rest: Duration,
    /// The longest time for an answer of the issuer, from connecting to its last byte.
    pub answer_max: Duration,
}

impl TokenOptions {
    /// The algorithms of a public key that issuers use: RSA with SHA-256, the curve P-256, Ed25519.
    pub const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    /// By so much clocks may differ where nobody says otherwise.
    pub const LEEWAY: Duration = Duration::from_secs(30);
    /// More would make a short life of tokens meaningless.
    pub const LEEWAY_MAX: Duration = Duration::from_secs(300);
    /// The shortest time between two times that keys are read.
    pub const KEYS_REST: Duration = Duration::from_secs(10);
    /// The longest time for an answer of the issuer.
    pub const ANSWER_MAX: Duration = Duration::from_secs(5);
}

/// Why tokens cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The issuer's address, or how it is reached.
    #[error("the issuer {issuer}: {problem}")]
    Issuer {
        /// Which.
        issuer: String,
        /// What is wrong.
        problem: String,
    },
    /// The file of rules.
    #[error("the file of rules for tokens {path}: {problem}")]
    Rules {
        /// Which.
        path: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Options(&'static str),
}

/// How far the task that reads keys is.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// How often it has read, or tried to.
    number: u64,
    phase: Phase,
    /// The last time went wrong.
    failed: bool,
}

/// What the task that reads keys does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It reads.
    Reading,
    /// It has read a moment ago, and does not read yet, whoever asks.
    Resting,
    /// It reads when it is asked.
    Idle,
}

/// Takes the tokens of one issuer.
#[derive(Debug, Clone)]
pub struct Tokens {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: TokenOptions,
    source: Source,
    keys: ArcSwap<KeySet>,
    rules: ArcSwap<Rules>,
    round: watch::Sender<Round>,
    /// A token named a key that is not known.
    asked: Notify,
    waiters: Semaphore,
}

impl Tokens {
    /// Reads the rules. Keys come with [`Self::follow`].
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn open(options: TokenOptions) -> Result<Self, TokenError> {
        if options.audience.is_empty() || options.audience.iter().any(String::is_empty) {
            return Err(TokenError::Options("an audience is expected: a token for another service opens nothing here"));
        }
        if options.algorithms.is_empty()
            || options.algorithms.iter().any(|one| one.family() == jsonwebtoken::AlgorithmFamily::Hmac)
        {
            return Err(TokenError::Options("algorithms: expected those of public keys, at least one"));
        }
        if options.leeway > TokenOptions::LEEWAY_MAX {
            return Err(TokenError::Options("the leeway of clocks is 5 minutes at most"));
        }
        signature::install();
        let source = Source::of(&options)?;
        let rules = read_rules(&options.rules).and_then(|text| parse_rules(&options.rules, &text))?;
        let round = watch::Sender::new(Round { number: 0, phase: Phase::Reading, failed: false });
        let (asked, waiters) = (Notify::new(), Semaphore::new(WAITERS_MAX));
        let (keys, rules) = (ArcSwap::default(), ArcSwap::from_pointee(rules));
        Ok(Self { inner: Arc::new(Inner { options, source, keys, rules, round, asked, waiters }) })
    }

    /// The issuer, for the log.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.inner.options.issuer
    }

    /// Keeps keys and rules as their sources have them, until `stop`.
    pub async fn follow(self, stop: CancellationToken) {
        let keys = async {
            loop {
                self.inner.read_keys().await;
                self.inner.rest().await;
            }
        };
        let both = async { tokio::join!(keys, self.inner.follow_rules()) };
        stop.run_until_cancelled(both).await;
    }

    /// What the holder of a token may do.
    ///
    /// # Errors
    /// 401: it is not good. 403: it is, and nothing is granted to it. 503: the issuer's keys cannot be had.
    pub(crate) async fn holder(&self, token: &str) -> Result<Grant, Problem> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Problem::unauthorized(format!("a token has at most {TOKEN_BYTES_MAX} bytes")));
        }
        let header =
            decode_header(token).map_err(|_| Problem::unauthorized("this is no API key, and no signed token"))?;
        self.inner.acceptable(&header)?;
        let claims = self.inner.claims(token, &header).await?;
        self.inner.granted(&claims)
    }
}

impl Inner {
    /// Refuses what is signed in another way than it may be, or is no token for requests.
    fn acceptable(&self, header: &Header) -> Result<(), Problem> {
        if !self.options.algorithms.contains(&header.alg) {
            return Err(Problem::unauthorized(format!("a token that is signed by {:?} is not taken here", header.alg)));
        }
        // What must be understood, and is not: RFC 7515, 4.1.11.
        if header.crit.is_some() {
            return Err(Problem::unauthorized("a token with critical header fields is not taken here"));
        }
        let kind = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !["jwt", "at+jwt"].contains(&kind.trim_start_matches("application/")) {
            return Err(Problem::unauthorized("this type of token is for something else than requests"));
        }
        Ok(())
    }

    /// The claims of a token that is good now.
    async fn claims(&self, token: &str, header: &Header) -> Result<Claims, Problem> {
        if let Some(checked) = self.checked(token, header) {
            return checked;
        }
        let round = self.keys_anew().await;
        if let Some(checked) = self.checked(token, header) {
            return checked;
        }
        if round.failed || round.number == 0 {
            return Err(Problem::issuer_away());
        }
        Err(Problem::unauthorized("this token is signed with a key that its issuer is not known to have"))
    }

    /// Checks a token with the key that it names. None: that key is not known.
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

    /// What the claims of a good token grant.
    fn granted(&self, claims: &Claims) -> Result<Grant, Problem> {
        // The library takes a list of issuers, too.
        if claims.get("iss").and_then(Value::as_str) != Some(self.options.issuer.as_str()) {
            return Err(refused(&ErrorKind::InvalidIssuer));
        }
        // Only who has that key may send such a token, and nothing proves it here: RFC 7800.
        if claims.contains_key("cnf") {
            return Err(Problem::unauthorized("a token that is bound to its sender's key is not taken here"));
        }
        let id = self.name(claims).map_err(Problem::forbidden)?;
        let mut grant = self.rules.load().grant(id, claims).map_err(Problem::forbidden)?;
        grant.expires = Some(ends(claims, self.options.leeway));
        Ok(grant)
    }

    /// Who acts, for the audit log.
    fn name(&self, claims: &Claims) -> Result<String, String> {
        let name = text(claims, &self.options.name_claim)?;
        // Whoever may write any address into their profile may not act under it.
        // Some issuers write the word as a text.
        let is_verified = |said: &Value| *said == true || *said == "true";
        if self.options.name_claim == "email" && claim(claims, "email_verified").is_some_and(|said| !is_verified(said))
        {
            return Err("the address of this token's holder is not verified".into());
        }
        if name.chars().count() > ID_CHARS_MAX || !name.chars().all(|c| c.is_alphanumeric() || c.is_ascii_graphic()) {
            let claim = &self.options.name_claim;
            return Err(format!("the claim {claim:?}: expected 1 to {ID_CHARS_MAX} letters, digits and signs"));
        }
        Ok(name.to_owned())
    }

    /// Asks for keys to be read, and waits while they are. Where they were read a moment ago, that has to do: what others
    /// write into tokens does not decide how often an issuer is asked.
    async fn keys_anew(&self) -> Round {
        let mut rounds = self.round.subscribe();
        let now = *rounds.borrow_and_update();
        self.asked.notify_one();
        if now.phase == Phase::Resting {
            return now;
        }
        let Ok(_one_of_few) = self.waiters.try_acquire() else { return now };
        match tokio::time::timeout(
            self.options.answer_max * ANSWERS,
            rounds.wait_for(|round| round.number > now.number),
        )
        .await
        {
            Ok(Ok(round)) => *round,
            _ => Round { failed: true, ..now },
        }
    }

    /// Reads the keys once.
    async fn read_keys(&self) {
        self.round.send_modify(|round| round.phase = Phase::Reading);
        let read = self.source.read().await;
        let failed = read.is_err();
        match read {
            Ok(keys) => {
                let before = self.round.borrow().failed || self.round.borrow().number == 0;
                if before || keys.len() != self.keys.load().len() {
                    let (used, skipped) = (keys.len(), keys.skipped);
                    tracing::info!(issuer = self.options.issuer, keys = used, skipped, "the issuer's keys were read");
                }
                self.keys.store(Arc::new(keys));
            }
            Err(problem) => {
                let known = self.keys.load().len();
                tracing::warn!(problem, known, "the issuer's keys cannot be read; those that are known stay in force");
            }
        }
        self.round.send_modify(|round| *round = Round { number: round.number + 1, phase: Phase::Resting, failed });
    }

    /// Waits until keys are to be read again.
    async fn rest(&self) {
        let (rest, every) = match self.source {
            Source::File(_) => (LOOK_EVERY, LOOK_FILE_EVERY),
            Source::Issuer { .. } if self.round.borrow().failed => (self.options.keys_rest, TRY_AGAIN),
            Source::Issuer { .. } => (self.options.keys_rest, READ_EVERY),
        };
        tokio::time::sleep(rest).await;
        self.round.send_modify(|round| round.phase = Phase::Idle);
        // Whether it was asked or not: it is time.
        let _ = tokio::time::timeout(every, self.asked.notified()).await;
    }

    /// Follows the file of rules: what it grants no more is refused a second later.
    async fn follow_rules(&self) {
        let path = &self.options.rules;
        let mut known = read_rules(path).ok();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let found = read_rules(path);
            let text = found.as_ref().ok().cloned();
            if text == known {
                continue;
            }
            known = text;
            match found.and_then(|text| parse_rules(path, &text)) {
                Ok(rules) => {
                    tracing::info!(rules = rules.len(), "the rules for tokens were read again");
                    self.rules.store(Arc::new(rules));
                }
                Err(error) => tracing::error!(%error, "the rules for tokens stay what they were"),
            }
        }
    }
}

/// When a token ends to be taken. The library has looked at it: a time that no calendar has is as far away as there is.
fn ends(claims: &Claims, leeway: Duration) -> DateTime<Utc> {
    let seconds = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() + leeway.as_secs_f64();
    #[allow(clippy::cast_possible_truncation, reason = "a number that is too large becomes the largest")]
    let end = DateTime::from_timestamp(seconds as i64, 0);
    end.unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Why a token is not good, in words for whoever sent it.
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

fn parse_rules(path: &Path, text: &str) -> Result<Rules, TokenError> {
    Rules::parse(text).map_err(|problem| TokenError::Rules { path: path.display().to_string(), problem })
}
