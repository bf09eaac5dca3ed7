//! Samples the metrics of the fleet for its history once per minute.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::audit::history::MINUTE_MS;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::{ConsumerId, TenantId};
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{Common, PATIENCE};

/// Each scheduler samples at a random offset, so that usually only the first one reads the metrics.
const SPREAD_MS: u32 = 5_000;
const RETRY: Duration = Duration::from_secs(5);

pub(crate) struct History {
    store: Store,
    active: Arc<PolicyHandle>,
    progress: Progress,
}

impl History {
    pub(crate) fn new(common: &Common) -> Self {
        Self { store: common.store.clone(), active: common.active.clone(), progress: common.progress.clone() }
    }

    pub(crate) async fn sample_until(self: Arc<Self>, consumer: ConsumerId, stop: CancellationToken) {
        let handle = self.progress.register("history", Duration::from_secs(60) * 2 + PATIENCE);
        let spread_ms = i64::from(crc32fast::hash(consumer.as_str().as_bytes()) % SPREAD_MS);
        loop {
            let wait = match self.sample().await {
                Ok(now_ms) => Duration::from_millis(until_next(now_ms, spread_ms).unsigned_abs()),
                Err(error) => {
                    tracing::warn!(%error, "failed to sample the figures of the last minute");
                    RETRY
                }
            };
            handle.advanced();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        handle.finished();
    }

    /// Returns shard time (ms).
    async fn sample(&self) -> Result<i64, StoreError> {
        let active = self.active.load();
        let tenants = active.policy.tenants.keys().filter(|tenant| self.store.is_home_of(tenant));
        let tenants: Vec<TenantId> = tenants.cloned().collect();
        self.store.sample_history(&tenants).await?;
        self.store.now_ms().await
    }
}

fn until_next(now_ms: i64, spread_ms: i64) -> i64 {
    MINUTE_MS - now_ms.rem_euclid(MINUTE_MS) + spread_ms
}
