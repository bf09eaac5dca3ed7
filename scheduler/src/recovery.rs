//! Taking back what dead processes held.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Reaped, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::PATIENCE;
use crate::decider::Decider;
use crate::endings::Endings;

/// Entries that one reap takes back.
const REAP_MAX: usize = 256;

/// Reaps the dead.
pub(crate) struct Recovery {
    store: Store,
    decider: Arc<Decider>,
    endings: Arc<Endings>,
    metrics: Arc<Metrics>,
    progress: Progress,
    /// The period at which dead workers are looked for.
    every: Duration,
}

impl Recovery {
    /// Looks for dead workers every `every`.
    pub(crate) fn new(common: &Common, endings: &Arc<Endings>, every: Duration) -> Self {
        Self {
            store: common.store.clone(),
            decider: common.decider.clone(),
            endings: endings.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            every,
        }
    }

    /// Reaps until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let every = self.every;
        let handle = self.progress.register("reap", every * 2 + PATIENCE * 2);
        let mut more = false;
        loop {
            // One scheduler's look is enough for all. With it, two of them are never further apart than two periods.
            let recent = if more { Duration::ZERO } else { every * 3 / 4 };
            more = false;
            match self.store.reap_unless_within(recent, REAP_MAX).await {
                Ok(None) => {}
                Ok(Some(reaped)) => {
                    more = reaped.more;
                    self.took_back(reaped).await;
                }
                Err(StoreError::StateLost(what)) => self.decider.state_lost(&what).await,
                Err(error) => {
                    tracing::warn!(%error, "failed to look for dead consumers");
                }
            }
            handle.advanced();
            // A script moves a bounded number of bytes; others are answered between two.
            let pause = if more { Duration::from_millis(5) } else { every };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        handle.finished();
    }

    /// Tells what was taken back, and settles what ends with it.
    async fn took_back(&self, reaped: Reaped) {
        for (what, why) in &reaped.aside {
            tracing::error!(what, why, "cannot recover an entry of a dead consumer; see the dead letters");
        }
        if reaped.requeued + reaped.dead + reaped.endings.len() as u64 > 0 {
            tracing::warn!(
                requeued = reaped.requeued,
                dead = reaped.dead,
                quarantined = reaped.endings.len(),
                "recovered work of dead consumers"
            );
        }
        self.metrics.reaped(reaped.requeued);
        let unreadable = reaped.aside.len() as u64;
        for _ in 0..reaped.dead.saturating_sub(unreadable) {
            self.metrics.dead("poison");
        }
        (0..unreadable).for_each(|_| self.metrics.dead("unreadable"));
        self.endings.settle(reaped.endings).await;
    }
}
