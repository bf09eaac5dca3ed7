//! Access tokens of a worker. Calls reuse valid tokens. One call requests a new token, and the others wait.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use secrecy::SecretString;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::client::Client;
use super::oauth2::{Credentials, SignInDigest};
use tickfleet_tools::ToolFailure;

/// The maximum number of sign-ins in memory. Further sign-ins work, but their calls share no tokens.
const TOKENS_MAX: usize = 4_096;
/// The limit of one sign-in, shorter than the usual timeout of a call.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(15);
/// The minimum time between replacements of rejected tokens. If a service rejects every token, each call would
/// otherwise send three requests.
const REPLACE_PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<SignInDigest, Arc<SignInEntry>>>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

#[derive(Default)]
struct SignInEntry {
    /// The number of attempted sign-ins. A call that waited for a failed attempt returns the same failure.
    tried: AtomicU64,
    slot: Arc<tokio::sync::Mutex<SignInState>>,
}

#[derive(Default)]
struct SignInState {
    token: Option<Arc<Token>>,
    /// The last refresh token from the service. It replaces the declared refresh token.
    rotated: Option<SecretString>,
    failure: Option<ToolFailure>,
    granted: u64,
    replaced: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Token {
    pub(super) value: SecretString,
    number: u64,
    good_until: Instant,
}

impl Tokens {
    /// Returns a valid token, and signs in if necessary. All calls that waited for a failed sign-in return the same
    /// failure.
    pub(super) async fn get(&self, client: &Arc<Client>, credentials: Credentials) -> Result<Arc<Token>, ToolFailure> {
        let entry = self.entry(credentials.identity());
        let tried = entry.tried.load(Ordering::SeqCst);
        let slot = Arc::clone(&entry.slot).lock_owned().await;
        if let Some(token) = slot.token.as_ref().filter(|token| Instant::now() < token.good_until) {
            return Ok(Arc::clone(token));
        }
        match &slot.failure {
            Some(failure) if entry.tried.load(Ordering::SeqCst) != tried => Err(failure.clone()),
            _ => sign_in(entry, slot, client, credentials).await,
        }
    }

    /// Returns a token that replaces the rejected token. `None` if a token was replaced less than [`REPLACE_PAUSE`]
    /// ago.
    pub(super) async fn replace(
        &self,
        client: &Arc<Client>,
        credentials: Credentials,
        refused: &Token,
    ) -> Option<Result<Arc<Token>, ToolFailure>> {
        let entry = self.entry(credentials.identity());
        let mut slot = Arc::clone(&entry.slot).lock_owned().await;
        let now = Instant::now();
        let newer = slot.token.as_ref().filter(|token| token.number > refused.number && now < token.good_until);
        if let Some(token) = newer {
            return Some(Ok(Arc::clone(token)));
        }
        if slot.replaced.is_some_and(|last| now.duration_since(last) < REPLACE_PAUSE) {
            return None;
        }
        slot.replaced = Some(now);
        Some(sign_in(entry, slot, client, credentials).await)
    }

    fn entry(&self, identity: SignInDigest) -> Arc<SignInEntry> {
        let mut entries = self.0.lock();
        if entries.len() >= TOKENS_MAX && !entries.contains_key(&identity) {
            let now = Instant::now();
            entries.retain(|_, entry| entry.slot.try_lock().map_or(true, |slot| slot.matters(now)));
            if entries.len() >= TOKENS_MAX {
                return Arc::default();
            }
        }
        Arc::clone(entries.entry(identity).or_default())
    }
}

impl SignInState {
    fn matters(&self, now: Instant) -> bool {
        self.rotated.is_some() || self.token.as_ref().is_some_and(|token| now < token.good_until)
    }
}

/// A dropped call must not stop this task: other calls wait for the result.
async fn sign_in(
    entry: Arc<SignInEntry>,
    mut slot: OwnedMutexGuard<SignInState>,
    client: &Arc<Client>,
    credentials: Credentials,
) -> Result<Arc<Token>, ToolFailure> {
    let client = Arc::clone(client);
    let signed_in = tokio::spawn(async move {
        let asked =
            tokio::time::timeout(SIGN_IN_TIMEOUT, credentials.request_grant(&client, slot.rotated.as_ref())).await;
        let result = asked.unwrap_or_else(|_| Err(too_slow())).map(|granted| {
            slot.granted += 1;
            slot.rotated = granted.refresh_token.or_else(|| slot.rotated.take());
            let value = granted.token;
            let number = slot.granted;
            Arc::new(Token { value, number, good_until: Instant::now() + granted.life })
        });
        if matches!(result, Err(ToolFailure::Ended { .. })) {
            // The service may have rejected only the rotated refresh token, so the next sign-in uses the declared
            // refresh token.
            slot.rotated = None;
        }
        slot.token = result.as_ref().ok().cloned();
        slot.failure = result.as_ref().err().cloned();
        entry.tried.fetch_add(1, Ordering::SeqCst);
        result
    });
    let bug = |error| ToolFailure::Internal { message: format!("the sign-in ended without a result: {error}") };
    signed_in.await.unwrap_or_else(|error| Err(bug(error)))
}

fn too_slow() -> ToolFailure {
    let message = "The tool could not sign in: its token service did not answer in time.".to_owned();
    ToolFailure::Transient { message, retry_after: None, not_executed: true }
}
