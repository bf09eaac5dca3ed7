//! For a metrics scrape, reads the values that are stored only in Redis.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::limit::LimitBound;
use tickfleet_model::{Limit, TenantId};
use tickfleet_ops::metrics::{Backlog, Metrics, RedisScrape, WorkStage};
use tickfleet_store::{ShardBacklog, Store};

pub struct Scrape {
    stores: Vec<Store>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    sealed: bool,
}

impl Scrape {
    #[must_use]
    pub fn new(stores: &[Store], active: &Arc<PolicyHandle>, metrics: &Arc<Metrics>) -> Self {
        let observed = stores.iter().map(|store| store.clone().observed_by(metrics.clone()));
        Self { stores: observed.collect(), active: Arc::clone(active), metrics: Arc::clone(metrics), sealed: false }
    }

    #[must_use]
    pub fn with_seals(self, sealed: bool) -> Self {
        Self { sealed, ..self }
    }

    /// `None` if a shard does not respond, because the total would be incomplete.
    pub async fn scrape(&self) -> Option<RedisScrape> {
        let active = self.active.load();
        self.metrics.config_admits(active.policy.agents.len(), active.policy.tenants.len());
        let reads = self.stores.iter().map(|store| async move {
            let tenants = self.tenants_of(store);
            let active = self.active.load();
            let is_share = |limit: &&Limit| matches!(limit.bound, LimitBound::Share(_));
            let shares: Vec<&str> = active.policy.limits.iter().filter(is_share).map(|l| l.name.as_str()).collect();
            let unsealed_ms = if self.sealed { store.unsealed_ms().await? } else { 0 };
            store.backlog(&tenants, &shares).await.map(|backlog| (backlog, unsealed_ms))
        });
        match try_join_all(reads).await {
            Ok(shards) => {
                let unsealed_ms = shards.iter().map(|(_, unsealed_ms)| *unsealed_ms).max().unwrap_or(0);
                let shards: Vec<_> = shards.into_iter().map(|(backlog, _)| backlog).collect();
                let unsealed = self.sealed.then(|| Duration::from_millis(unsealed_ms.max(0).unsigned_abs()));
                Some(RedisScrape { unsealed, ..merged(&shards) })
            }
            Err(error) => {
                tracing::debug!(%error, "backlog missing from this scrape");
                None
            }
        }
    }

    fn tenants_of(&self, store: &Store) -> Vec<TenantId> {
        self.active.load().policy.tenants.keys().filter(|tenant| store.is_home_of(tenant)).cloned().collect()
    }
}

/// Shards can share one Redis, so memory use is the maximum and not the sum.
fn merged(shards: &[ShardBacklog]) -> RedisScrape {
    let place = |place: WorkStage, count: fn(&ShardBacklog) -> u64, oldest_ms: fn(&ShardBacklog) -> i64| {
        let count = shards.iter().map(count).sum();
        let oldest_ms = shards.iter().map(oldest_ms).max().unwrap_or(0);
        let oldest = (count > 0).then(|| Duration::from_millis(oldest_ms.max(0).unsigned_abs()));
        (place, Backlog { count, oldest })
    };
    RedisScrape {
        backlog: vec![
            place(WorkStage::Inbound, |backlog| backlog.inbound + backlog.tasks, |backlog| backlog.oldest_inbound_ms),
            place(WorkStage::Ready, |backlog| backlog.ready, |backlog| backlog.oldest_ready_ms),
            place(WorkStage::Suspect, |backlog| backlog.suspect, |backlog| backlog.oldest_suspect_ms),
            place(WorkStage::ParkedCapped, |backlog| backlog.parked, |backlog| backlog.oldest_parked_ms),
            place(WorkStage::Delayed, |backlog| backlog.delayed, |backlog| backlog.oldest_delayed_ms),
            place(WorkStage::Approval, |backlog| backlog.approval, |backlog| backlog.oldest_approval_ms),
            place(WorkStage::Running, |backlog| backlog.running, |backlog| backlog.oldest_pending_ms),
            place(WorkStage::Dead, |backlog| backlog.dead, |backlog| backlog.oldest_dead_ms),
        ],
        memory_used: shards.iter().map(|backlog| backlog.memory.used).max().unwrap_or(0),
        memory_max: shards.iter().map(|backlog| backlog.memory.max).max().unwrap_or(0),
        // The flag `pressure` can be a second old, so the current memory use counts too.
        pressure: shards.iter().any(|backlog| backlog.pressure || backlog.memory.is_nearly_full()),
        unsealed: None,
        shard_times_ms: shards.iter().map(|backlog| backlog.now_ms).collect(),
    }
}
