//! Measures the backlog and keeps slow bounds.

use std::sync::Arc;
use std::time::Duration;

use shared::ops::metrics::{Backlog, Place};
use shared::store::StoreError;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;

/// Measures and keeps house until `stop`.
pub(crate) async fn collect(scheduler: Arc<Scheduler>, stop: CancellationToken) {
    let handle = scheduler.progress.register("collect", scheduler.options.collect_every * 10 + Duration::from_secs(30));
    let mut cursor = 0;
    loop {
        match scheduler.store.prune(cursor).await {
            Ok(next) => cursor = next,
            Err(error) => tracing::debug!(%error, "budgets could not be pruned"),
        }
        if let Err(error) = scheduler.collect_once().await {
            scheduler.metrics.redis_error("collect");
            // Gauges that stay at their last value through a stall would lie; absent ones alert.
            scheduler.metrics.backlog_unknown();
            tracing::warn!(%error, "the backlog could not be measured");
        }
        handle.advanced();
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(scheduler.options.collect_every) => {}
        }
    }
    handle.finished();
}

impl Scheduler {
    async fn collect_once(&self) -> Result<(), StoreError> {
        let memory = self.store.watch_memory().await?;
        if memory.is_tight() {
            tracing::error!(used = memory.used, max = memory.max, "Redis is nearly full; no new work is taken in");
        }
        let now_ms = self.clock.now_ms();
        let seen = self.store.backlog(now_ms).await?;
        let place = |count: u64, oldest_ms: i64| Backlog {
            count,
            oldest: (oldest_ms > 0).then(|| Duration::from_millis(oldest_ms.unsigned_abs())),
        };
        self.metrics.backlog(&[
            (Place::Inbound, place(seen.inbound + seen.tasks, seen.oldest_inbound_ms)),
            (Place::Ready, place(seen.ready, seen.oldest_ready_ms)),
            (Place::Running, place(seen.running, seen.oldest_pending_ms)),
            (Place::Dead, place(seen.dead, 0)),
        ]);
        self.store.housekeep(now_ms, self.options.audit_bytes_max, self.options.dead_retain_ms).await
    }
}
