//! A slow look at all turns under way, for those that nobody would look at again.

use std::collections::BTreeSet;

use tickfleet_ops::metrics::{Invariant, Metrics};
use tickfleet_store::{Store, StoreError, SweepAt, Swept, TurnName};

/// Steps of the sweep in one turn of the loop: about 1,000 turns, a few ms of Redis.
const STEPS: usize = 4;
/// Steps of it while there is something to mend: what was lost was mostly lost together.
const STEPS_MENDING_MAX: usize = 64;
/// Violations that are remembered, so that each is reported once.
const REPORTED_MAX: usize = 1_000;

/// A walk over all turns under way, a few hundred a step.
#[derive(Default)]
pub(crate) struct Sweep {
    at: SweepAt,
    /// Since when the oldest turn waits on a lane that this round has seen, ms of shard time.
    oldest_ms: Option<i64>,
    /// Turns that seemed wrong in the last step. Only those that still do in this one count.
    suspects: Vec<TurnName>,
    reported: BTreeSet<TurnName>,
}

impl Sweep {
    /// Looks again at what seemed wrong, and goes on.
    pub(crate) async fn steps(&mut self, store: &Store, metrics: &Metrics) -> Result<(), StoreError> {
        self.confirm(store, metrics).await?;
        let (mut steps, mut mending) = (0, false);
        while steps < STEPS || (mending && steps < STEPS_MENDING_MAX) {
            let swept = self.step(store, metrics).await?;
            steps += 1;
            mending |= !swept.adrift.is_empty();
            if swept.round_complete {
                break;
            }
        }
        Ok(())
    }

    /// Reports the suspects of the last time that are still without a timer, and has them looked at again.
    async fn confirm(&mut self, store: &Store, metrics: &Metrics) -> Result<(), StoreError> {
        let suspects = std::mem::take(&mut self.suspects);
        let lost = store.waiting_without_timer(&suspects).await?;
        store.wake(&lost).await?;
        for name in lost {
            if self.reported.len() < REPORTED_MAX && self.reported.insert(name.clone()) {
                metrics.violated(Invariant::WaitingWithoutTimer);
                tracing::error!(turn = %name, "turn has calls left but no timer: a bug, or a manual change in Redis");
            }
        }
        Ok(())
    }

    /// Looks at some more turns, and wakes those whose slice seems to be nowhere: `promote` looks closer.
    async fn step(&mut self, store: &Store, metrics: &Metrics) -> Result<Swept, StoreError> {
        let swept = store.sweep(self.at).await?;
        self.at = swept.next;
        self.suspects.extend(swept.waiting_without_timer.iter().cloned());
        store.wake(&swept.adrift).await?;
        self.oldest_ms = [self.oldest_ms, swept.oldest_parked_ms].into_iter().flatten().min();
        if swept.round_complete {
            metrics.parked_since(store.shard(), self.oldest_ms.take());
        }
        Ok(swept)
    }
}
