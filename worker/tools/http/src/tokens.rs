//! Access tokens of a worker: kept while they are good, asked for by one call while the others wait.

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
use super::oauth2::{Credentials, Identity};
use tickfleet_tools::ToolFailure;

/// Sign-ins that are remembered. One more is not shared between calls, but works.
const TOKENS_MAX: usize = 4_096;
/// Limit of one sign-in, below the usual timeout of a call.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(15);
/// A token that the service refused is replaced at most this often: a service that refuses all of them would else be
/// asked twice by every call, and its token service once.
const REPLACE_PAUSE: Duration = Duration::from_secs(10);

/// The tokens of a set of tools, by who signed in for what.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<Identity, Arc<Entry>>>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

/// One sign-in.
#[derive(Default)]
struct Entry {
    /// Sign-ins that were tried. Who waited for one takes part in its failure instead of trying again.
    tried: AtomicU64,
    slot: Arc<tokio::sync::Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    token: Option<Arc<Token>>,
    /// The refresh token that replaced the declared one.
    rotated: Option<SecretString>,
    failure: Option<ToolFailure>,
    granted: u64,
    replaced: Option<Instant>,
}

/// An access token.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) value: SecretString,
    number: u64,
    good_until: Instant,
}

impl Tokens {
    /// A token that is good: one that is known, or a new one.
    ///
    /// # Errors
    /// [`ToolFailure`] where the sign-in failed, for all who waited for it.
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

    /// The token after `refused`: the one that another call has got meanwhile, or a new one. None where the last one
    /// was replaced only just now.
    ///
    /// # Errors
    /// [`ToolFailure`] where the sign-in failed.
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

    fn entry(&self, identity: Identity) -> Arc<Entry> {
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

impl Slot {
    fn matters(&self, now: Instant) -> bool {
        self.rotated.is_some() || self.token.as_ref().is_some_and(|token| now < token.good_until)
    }
}

/// Signs in, in a task of its own: it goes on where the call that began it is given up, for others wait for it, and a
/// service that replaces refresh tokens has then replaced this one.
async fn sign_in(
    entry: Arc<Entry>,
    mut slot: OwnedMutexGuard<Slot>,
    client: &Arc<Client>,
    credentials: Credentials,
) -> Result<Arc<Token>, ToolFailure> {
    let client = Arc::clone(client);
    let signed_in = tokio::spawn(async move {
        let asked = tokio::time::timeout(SIGN_IN_TIMEOUT, credentials.ask(&client, slot.rotated.as_ref())).await;
        let result = asked.unwrap_or_else(|_| Err(too_slow())).map(|granted| {
            slot.granted += 1;
            slot.rotated = granted.refresh_token.or_else(|| slot.rotated.take());
            let (value, number) = (granted.token, slot.granted);
            Arc::new(Token { value, number, good_until: Instant::now() + granted.life })
        });
        if matches!(result, Err(ToolFailure::Permanent { .. })) {
            // Perhaps only the replaced refresh token is bad: the next try begins with the declared one.
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
