use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tickfleet_core::audit::AuditAppend;
use tickfleet_core::bounds::Bounds;
use tickfleet_core::turn::submit::Inbound;
use tickfleet_core::view::{READS_MAX, Undecided};
use tickfleet_core::{Context, Decision, Query, Receipt, Record, RecordKey, Stored, Value, Version, View};
use tickfleet_model::Durability;
use tickfleet_protocol::{Operator, OperatorAct, operator_entry};

use crate::seam::redis::RedisStore;
use crate::seam::{self, RunError, ShardState, Versions};
use crate::{Confirmed, ShardClock, Store, StoreError};

#[derive(Clone)]
pub(crate) enum Backend {
    Redis(Arc<RedisStore>),
    /// In this process's memory, in another process behind a socket, or with injected faults.
    Memory(Arc<dyn seam::Store>),
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Redis(_) => "Redis",
            Self::Memory(_) => "Memory",
        })
    }
}

#[derive(Debug)]
pub(crate) struct ShardCache {
    versions: Versions,
    state: Mutex<ShardState>,
    clock: ShardClock,
    inbound: [Mutex<InboundCheck>; 2],
    /// The maximum of a reply's shard time minus this process's estimate (ms), since the last [`Store::take_jump_ms`].
    ahead_ms: AtomicI64,
}

#[derive(Debug, Clone, Copy, Default)]
struct InboundCheck {
    looked_ms: i64,
    is_full: bool,
}

const INBOUND_CHECK_MS: i64 = 100;

impl Default for ShardCache {
    fn default() -> Self {
        let prefix = format!("{:x}.", rand_prefix());
        Self {
            versions: Versions::new(prefix),
            state: Mutex::default(),
            clock: ShardClock::default(),
            inbound: <[Mutex<InboundCheck>; 2]>::default(),
            ahead_ms: AtomicI64::new(0),
        }
    }
}

/// Random, because the standard library gives each process random hasher keys.
fn rand_prefix() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Store {
    #[must_use]
    pub fn seam(&self) -> &dyn seam::Store {
        match &self.backend {
            Backend::Redis(redis) => &**redis,
            Backend::Memory(memory) => &**memory,
        }
    }

    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        matches!(self.backend, Backend::Memory(_))
    }

    #[must_use]
    pub fn bounds(&self) -> Bounds {
        let options = self.options();
        Bounds {
            lease_ms: options.lease_ms,
            retain_ms: options.retain_ms,
            dedupe_ms: options.dedupe_ms,
            audit_entries_max: options.audit_entries_max,
            audit_admissions: options.audit_admissions,
            dead_entries_max: options.dead_entries_max,
            turns_max: options.turns_max,
            tenant_turns_max: options.tenant_turns_max,
            tenant_bytes_max: options.tenant_bytes_max,
            tenant_in_flight_max: options.tenant_ready_max,
            inbox_unread_max: options.inbox_unread_max,
            inboxes_max: options.inboxes_max,
            crashes_max: options.crashes_max,
        }
    }

    /// The limits for a new message. While the stream has too many bytes, `turns_max` is 0, so that the stream accepts
    /// no new message. Messages with IDs that were accepted before are still recognized.
    pub async fn inbound_bounds(&self, to: Inbound) -> Result<Bounds, StoreError> {
        let now_ms = self.state_or_read().await?.now_ms;
        let [turns, tasks] = &self.known.inbound;
        let look = match to {
            Inbound::Turns => turns,
            Inbound::Tasks => tasks,
        };
        let lock = || look.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inbound = *lock();
        if (now_ms - inbound.looked_ms).abs() >= INBOUND_CHECK_MS {
            let bytes = self.seam().stream_bytes(&to.stream()).await?;
            inbound = InboundCheck { looked_ms: now_ms, is_full: bytes >= self.options().turns_bytes_max };
            *lock() = inbound;
        }
        let bounds = self.bounds();
        Ok(if inbound.is_full { Bounds { turns_max: 0, ..bounds } } else { bounds })
    }

    #[must_use]
    pub fn audit_append(&self, act: &OperatorAct<'_>, operator: Operator<'_>, timestamp_ms: i64) -> AuditAppend {
        let text = operator_entry(act, operator, timestamp_ms).into();
        AuditAppend { text, entries_max: self.options().audit_entries_max }
    }

    #[must_use]
    pub fn versions(&self) -> &Versions {
        &self.known.versions
    }

    #[must_use]
    pub fn state(&self) -> ShardState {
        let state = *self.known.state.lock().unwrap_or_else(PoisonError::into_inner);
        ShardState { now_ms: self.known.clock.now_ms().max(state.now_ms), ..state }
    }

    #[must_use]
    pub fn clock(&self) -> &ShardClock {
        &self.known.clock
    }

    pub async fn refresh_state(&self) -> Result<ShardState, StoreError> {
        let state = self.seam().shard().await?;
        self.learn(state);
        Ok(self.state())
    }

    /// The maximum of a reply's shard time minus this process's estimate (ms), since the last call.
    #[must_use]
    pub fn take_jump_ms(&self) -> i64 {
        self.known.ahead_ms.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn learn(&self, state: ShardState) {
        let mut known = self.known.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Replies may arrive in another order than their commits, so ignore older times. Always use the state of
        // another epoch, because shard time can go back after a failover.
        if state.epoch != known.epoch || state.now_ms >= known.now_ms {
            if known.now_ms > 0 {
                self.known.ahead_ms.fetch_max(state.now_ms - self.known.clock.now_ms(), Ordering::Relaxed);
            }
            *known = state;
            self.known.clock.set(state.now_ms);
        }
    }

    pub async fn decide<D: Decision>(&self, decision: D) -> Result<Receipt<D::Output>, RunError> {
        let mut results = self.decide_all(std::slice::from_ref(&decision)).await?;
        results.pop().unwrap_or_else(|| Err(RunError::Contended(0)))
    }

    /// Each attempt takes one round trip for all reads, and one for all commits. After an error, the outcome of the
    /// last commit is unknown. The caller may run the same decisions again.
    pub async fn decide_all<D: Decision>(
        &self,
        decisions: &[D],
    ) -> Result<Vec<Result<Receipt<D::Output>, RunError>>, StoreError> {
        let state = self.state_or_read().await?;
        let (state, results) = seam::run(self.seam(), self.versions(), state, decisions).await?;
        self.learn(state);
        Ok(results)
    }

    /// Starts with a view that the caller has filled.
    pub async fn decide_with<D: Decision>(
        &self,
        view: &mut View,
        decisions: &[D],
    ) -> Result<Vec<Result<Receipt<D::Output>, RunError>>, StoreError> {
        let state = self.state_or_read().await?;
        let (state, results) = seam::run_with(self.seam(), self.versions(), state, view, decisions).await?;
        self.learn(state);
        Ok(results)
    }

    /// Also waits up to `at_most` until the commits have the requested durability.
    pub async fn decide_durably<D: Decision>(
        &self,
        view: &mut View,
        decisions: &[D],
        durability: Durability,
        at_most: Duration,
    ) -> Result<(Vec<Result<Receipt<D::Output>, RunError>>, Confirmed), StoreError> {
        let state = self.state_or_read().await?;
        let items = (view, decisions);
        let how = (durability, at_most);
        let (state, results, confirmed) = seam::run_durably(self.seam(), self.versions(), state, items, how).await?;
        self.learn(state);
        Ok((results, confirmed))
    }

    /// Reads missing values and calls `evaluate` again. The context has no version, because nothing is committed.
    pub async fn evaluate<T>(
        &self,
        view: &mut View,
        evaluate: impl Fn(&View, &Context) -> Result<T, Undecided> + Send,
    ) -> Result<T, RunError> {
        for _ in 0..READS_MAX {
            let context = self.state_or_read().await?.context(Version::new("-"));
            match evaluate(view, &context) {
                Ok(value) => return Ok(value),
                Err(Undecided::Unreadable { key, why }) => return Err(RunError::Unreadable { key, why }),
                Err(Undecided::Missing(queries)) => {
                    let values = self.seam().read(&queries).await?;
                    for (query, value) in queries.into_iter().zip(values) {
                        view.insert(query, value);
                    }
                }
            }
        }
        Err(RunError::Contended(READS_MAX))
    }

    async fn state_or_read(&self) -> Result<ShardState, StoreError> {
        let state = self.state();
        if state.epoch == 0 { self.refresh_state().await } else { Ok(state) }
    }

    pub async fn query(&self, query: Query) -> Result<Value, StoreError> {
        let mut values = self.seam().read(std::slice::from_ref(&query)).await?;
        values.pop().ok_or_else(|| StoreError::Undecided(format!("no answer to {query:?}")))
    }

    pub async fn record_of<T: Record>(&self, key: &RecordKey) -> Result<Option<Stored<T>>, StoreError> {
        match self.query(Query::Record(key.clone())).await? {
            Value::Record(Some(stored)) => Stored::read(&stored)
                .map(Some)
                .map_err(|why| StoreError::Undecided(format!("record {key} cannot be read: {why}"))),
            _ => Ok(None),
        }
    }
}

impl From<RunError> for StoreError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Store(error) => error,
            other => Self::Undecided(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use bytes::Bytes;
    use tickfleet_core::turn::submit::{Submit, Submitted};
    use tickfleet_model::{TenantId, TurnId};

    use super::*;
    use crate::StoreOptions;
    use crate::seam::memory::MemoryStore;

    #[test]
    fn a_failover_to_a_server_with_an_earlier_clock_is_detected() {
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
        let state = |epoch, now_ms| ShardState { epoch, now_ms, ..ShardState::default() };
        store.learn(state(1, 9_000));
        store.learn(state(1, 8_000));
        assert_eq!(store.state().epoch, 1);
        store.learn(state(2, 5_000));
        assert_eq!(store.state().epoch, 2);
    }

    #[tokio::test]
    async fn a_full_stream_rejects_new_turns_and_recognizes_accepted_ids() {
        let options = StoreOptions { turns_bytes_max: 1_000, ..StoreOptions::default() };
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(options));
        let submit = async |id: &str| {
            let bounds = store.inbound_bounds(Inbound::Turns).await.unwrap();
            let payload = Bytes::from("x".repeat(1_000));
            let given = Some((TurnId::new(id).unwrap(), "d".to_owned()));
            let tenant = TenantId::new("acme").unwrap();
            let submit = Submit { to: Inbound::Turns, tenant, given, reply_to: None, payload, bounds: &bounds };
            let submitted = store.decide(submit).await.unwrap().result;
            *store.known.inbound[0].lock().unwrap() = InboundCheck::default();
            submitted
        };
        assert_eq!(submit("a").await, Submitted::Accepted);
        assert_eq!(submit("b").await, Submitted::QueueFull);
        assert_eq!(submit("a").await, Submitted::Duplicate);
    }
}
