//! Periodically trims stored data, removes expired data, and samples memory.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::counters::{DeleteCounters, PruneCounter, expiring};
use tickfleet_core::dead::ForgetHandled;
use tickfleet_core::task::external::DropExternalQueue;
use tickfleet_core::task::lists::ExpireList;
use tickfleet_core::{CounterKey, Query, RecordKey, SetKey, StreamKey, Transaction, Value, audit, call, keys};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::{AgentId, TenantId, limits};
use tickfleet_ops::progress::Progress;
use tickfleet_store::seam::TrimBounds;
use tickfleet_store::{Store, StoreError, entry_ms, entry_number};
use tokio_util::sync::CancellationToken;

use crate::policy::has_slot_limits;
use crate::policy_tracker::PolicyTracker;
use crate::{Common, Options};

/// A fast producer fills a few percent of the memory in this time.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The audit log may use at most 1/4 of the maximum memory.
const AUDIT_SHARE: u64 = 4;
/// Dead letters may use at most 1/16 of the maximum memory.
const DEAD_SHARE: u64 = 16;
const STEP_MAX: usize = 256;
/// Retention of the events of approvals.
const EVENTS_MS: i64 = 7 * 24 * 3_600_000;

/// (used, maximum), in bytes. A maximum of 0 means that memory is unlimited.
type Memory = (u64, u64);

fn share(memory: Memory, bytes_max: u64, part: u64) -> u64 {
    match memory.1 {
        0 => bytes_max,
        max => bytes_max.min(max / part),
    }
}

pub(crate) struct Janitor {
    store: Store,
    active: Arc<PolicyHandle>,
    policy_tracker: Arc<PolicyTracker>,
    progress: Progress,
    every: Duration,
    audit_bytes_max: u64,
    dead_retain_ms: i64,
}

impl Janitor {
    pub(crate) fn new(common: &Common, options: &Options) -> Self {
        Self {
            store: common.store.clone(),
            active: common.active.clone(),
            policy_tracker: common.policy_tracker.clone(),
            progress: common.progress.clone(),
            every: options.collect_every,
            audit_bytes_max: options.audit_bytes_max,
            dead_retain_ms: options.dead_retain_ms,
        }
    }

    pub(crate) async fn enforce_bounds(self: Arc<Self>, stop: CancellationToken) {
        let handle = self.progress.register("collect", self.every * 10 + Duration::from_secs(30));
        let mut cursors = Cursors::default();
        loop {
            let steps = async {
                let memory = self.store.seam().sample_memory().await?;
                self.trim_logs(memory).await?;
                self.trim_inboxes().await?;
                self.expire().await?;
                self.prune(&mut cursors).await?;
                self.drop_orphaned_queues().await
            };
            if let Err(error) = steps.await {
                tracing::warn!(%error, "failed to trim to configured bounds");
            }
            handle.advanced();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.every) => {}
            }
        }
        handle.finished();
    }

    /// While memory is short, also trims the logs at each sample.
    pub(crate) async fn sample_memory_until(self: Arc<Self>, stop: CancellationToken) {
        let handle = self.progress.register("memory", Duration::from_secs(60));
        let mut was_short = false;
        loop {
            match self.sample_once().await {
                Ok(((used, max), true)) => {
                    tracing::error!(used, max, "Redis memory nearly full; rejecting new work, finishing accepted work");
                    if let Err(error) = self.trim_logs((used, max)).await {
                        tracing::warn!(%error, "failed to trim to configured bounds");
                    }
                    was_short = true;
                }
                Ok(((used, max), false)) => {
                    if std::mem::take(&mut was_short) {
                        tracing::info!(used, max, "Redis memory below the limit; accepting new work");
                    }
                }
                Err(error) => tracing::warn!(%error, "failed to sample Redis memory"),
            }
            if let Err(error) = self.count_slots().await {
                tracing::warn!(%error, "failed to count worker slots; using the last count");
            }
            handle.advanced();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(SAMPLE_EVERY) => {}
            }
        }
        handle.finished();
    }

    async fn sample_once(&self) -> Result<(Memory, bool), StoreError> {
        let memory = self.store.seam().sample_memory().await?;
        Ok((memory, self.store.refresh_state().await?.pressure))
    }

    async fn count_slots(&self) -> Result<(), StoreError> {
        if has_slot_limits(&self.active.load().policy) {
            self.policy_tracker.state().slots().set_load(&self.store.fleet_load().await?);
        }
        Ok(())
    }

    /// Trims by size and age. Each commit of a result limits the number of audit entries.
    async fn trim_logs(&self, memory: Memory) -> Result<(), StoreError> {
        let audit_bytes = share(memory, self.audit_bytes_max, AUDIT_SHARE);
        self.trim(&keys::audit(), audit_bytes, self.store.options().audit_retain_ms).await?;
        self.trim(&keys::dead(), share(memory, limits::DEAD_BYTES_MAX, DEAD_SHARE), self.dead_retain_ms).await?;
        // A seal's ID is at least as high as the IDs of its entries. Trimming seals up to the oldest audit entry
        // therefore keeps all seals that are still needed.
        let oldest = self.store.query(Query::Entries { stream: keys::audit(), after: None, count: 1 }).await?;
        if let Value::Entries(entries) = oldest
            && let Some(first_ms) = entries.first().and_then(|(entry, _)| entry_ms(entry.as_str()))
        {
            let age_ms = (self.store.state().now_ms - first_ms).max(1);
            self.store.seam().trim(&audit::seal::seals(), TrimBounds { age_ms, ..TrimBounds::default() }).await?;
        }
        Ok(())
    }

    async fn trim(&self, log: &StreamKey, bytes_max: u64, age_ms: i64) -> Result<(), StoreError> {
        let bytes = self.store.seam().stream_bytes(log).await?;
        let mut keep = TrimBounds { age_ms, ..TrimBounds::default() };
        if bytes > bytes_max {
            let entries = u128::from(self.store.seam().backlog(log).await?.waiting);
            let kept = entries * u128::from(bytes_max) / u128::from(bytes.max(1));
            keep.entries = u64::try_from(kept).unwrap_or(u64::MAX).max(1);
        }
        self.store.seam().trim(log, keep).await.map(drop)
    }

    /// An inbox that was unused for the retention time leaves the list of inboxes.
    async fn trim_inboxes(&self) -> Result<(), StoreError> {
        let active = self.active.load();
        for tenant in active.policy.tenants.keys().filter(|tenant| self.store.is_home_of(tenant)) {
            skip_damaged(self.trim_inboxes_of(tenant).await, tenant.as_str())?;
        }
        Ok(())
    }

    async fn trim_inboxes_of(&self, tenant: &TenantId) -> Result<(), StoreError> {
        let retain_ms = self.store.options().reply_retain_ms;
        let now_ms = self.store.state().now_ms;
        let set = SetKey::new(format!("inboxes:{tenant}"));
        let first = Query::First { set: set.clone(), upto: None, count: STEP_MAX * 4 };
        let Value::Members(inboxes) = self.store.query(first).await? else { return Ok(()) };
        for (inbox, used_ms) in inboxes {
            skip_damaged(trim_inbox(&self.store, tenant, &inbox, retain_ms).await.map(drop), &inbox)?;
            if i64::try_from(used_ms).unwrap_or(i64::MAX) + retain_ms < now_ms {
                let mut transaction = Transaction::new(self.store.versions().draw());
                transaction.leave(set.clone(), inbox);
                self.store.seam().commit(&[transaction]).await?;
            }
        }
        let events = call::approval::events(tenant);
        self.store.seam().trim(&events, TrimBounds { age_ms: EVENTS_MS, ..TrimBounds::default() }).await.map(drop)
    }

    /// Also removes the records of handled dead letters that are older than the audit log.
    async fn expire(&self) -> Result<(), StoreError> {
        for _ in 0..STEP_MAX {
            if !self.store.decide(ExpireList).await?.result {
                break;
            }
        }
        let Value::Entries(first) =
            self.store.query(Query::Entries { stream: keys::audit(), after: None, count: 1 }).await?
        else {
            return Ok(());
        };
        let first_ms = first.first().and_then(|(entry, _)| entry_ms(entry.as_str()));
        let Some(log_begins_ms) = first_ms.and_then(|first_ms| u64::try_from(first_ms).ok()) else { return Ok(()) };
        self.store.decide(ForgetHandled { log_begins_ms }).await?;
        Ok(())
    }

    async fn prune(&self, cursors: &mut Cursors) -> Result<(), StoreError> {
        let now_ms = self.store.state().now_ms.max(0).unsigned_abs();
        let due = Query::First { set: expiring(), upto: Some(now_ms), count: 1 };
        if let Value::Members(limits) = self.store.query(due).await?
            && let Some((limit, _)) = limits.into_iter().next()
        {
            let (counters, next) = self.store.seam().scan_counters(&limit, 0, STEP_MAX).await?;
            let counters = counters.into_iter().map(|(name, _)| name).collect();
            self.store.decide(DeleteCounters { limit, counters, last: next == 0 }).await?;
        }
        let active = self.active.load();
        let names: Vec<String> = keys::limits::WINDOWED
            .iter()
            .map(|name| (*name).to_owned())
            .chain(active.policy.limits.iter().map(|limit| limit.name.clone()))
            .collect();
        let Some(limit) = names.get(cursors.limit % names.len().max(1)) else { return Ok(()) };
        let (counters, next) = self.store.seam().scan_counters(limit, cursors.counter, STEP_MAX).await?;
        let prunes: Vec<PruneCounter> = counters
            .into_iter()
            .filter(|(_, state)| PruneCounter::is_idle(state, self.store.state().now_ms))
            .map(|(counter, _)| PruneCounter { counter: CounterKey::new(limit, counter) })
            .collect();
        self.store.decide_all(&prunes).await?;
        cursors.counter = next;
        if next == 0 {
            cursors.limit = cursors.limit.wrapping_add(1);
        }
        Ok(())
    }

    /// An orphaned queue belongs to an agent that no longer has an external runtime.
    async fn drop_orphaned_queues(&self) -> Result<(), StoreError> {
        let query = Query::First { set: keys::externals(), upto: None, count: STEP_MAX };
        let Value::Members(queues) = self.store.query(query).await? else { return Ok(()) };
        let active = self.active.load();
        let is_configured = |queue: &str| {
            let rest = queue.strip_prefix("external:").and_then(|rest| rest.split_once(':'));
            let names = rest.and_then(|(tenant, agent)| Some((TenantId::new(tenant).ok()?, AgentId::new(agent).ok()?)));
            names.is_some_and(|(tenant, agent)| {
                active.policy.look_up(&tenant, &agent).is_ok()
                    && active.task_handlers.get(&agent).is_some_and(|handler| handler.external_lease().is_some())
            })
        };
        for (queue, _) in queues.iter().filter(|(queue, _)| !is_configured(queue)) {
            self.store.decide(DropExternalQueue { queue: StreamKey::new(queue) }).await?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Cursors {
    limit: usize,
    counter: u64,
}

/// Skips damaged inboxes, so that the other inboxes are trimmed.
fn skip_damaged(result: Result<(), StoreError>, name: &str) -> Result<(), StoreError> {
    match result {
        Err(error) if error.is_script_error() => {
            tracing::warn!(name, %error, "failed to trim damaged inbox");
            Ok(())
        }
        result => result,
    }
}

/// Readers confirm replies by a stored position or through consumer groups. Returns the number of removed replies.
pub(crate) async fn trim_inbox(store: &Store, tenant: &TenantId, inbox: &str, age_ms: i64) -> Result<u64, StoreError> {
    let read = RecordKey::new(format!("read:{tenant}:{inbox}"));
    let read_through = match store.query(Query::Record(read)).await? {
        Value::Record(Some(text)) => std::str::from_utf8(&text).ok().and_then(entry_number),
        _ => None,
    };
    let log = StreamKey::new(format!("replies:{tenant}:{inbox}"));
    let read_through = read_through.max(store.seam().acknowledged(&log).await?);
    store.seam().trim(&log, TrimBounds { age_ms, read_through, ..TrimBounds::default() }).await
}
