//! A worker's lease: its name, its heartbeats, and what it does when one does not come through.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_model::policy::Pause;
use tickfleet_model::{ConsumerId, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Beat, Restored, Returned, ShardClock, Slots, Store, StoreError, worker_of};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Common;
use crate::claims::Claims;
use crate::config::WorkerConfigs;
use crate::held::HeldSlices;
use crate::lease_clock::LeaseClock;
use crate::outbox::Outbox;

/// Own pending entries looked at after trouble with the connection: more than a worker can hold.
pub(crate) const LOST_MAX: usize = 10_000;

/// The worker's part on one shard, drained or not.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    heard: Mutex<Heard>,
}

/// What the last heartbeats have brought.
#[derive(Debug, Default)]
struct Heard {
    drained: Option<Pause>,
    /// The Redis that has said so.
    run_id: String,
}

impl Quiet {
    /// A heartbeat has brought this. Answers what has to be put back: a drain of which another Redis process knows nothing
    /// has not been lifted, but lost with what was written last. It holds on meanwhile.
    pub(crate) fn hear(&self, drained: &Option<Pause>, run_id: &str) -> Option<Pause> {
        let mut heard = self.heard.lock();
        match (&heard.drained, drained) {
            (None, Some(Pause { by, reason, .. })) => {
                tracing::warn!(by, reason, "drained by an operator; finishing current work, taking no new work");
            }
            (Some(lost), None) if heard.run_id != run_id => return Some(lost.clone()),
            (Some(_), None) => tracing::info!("resumed by an operator; taking new work"),
            _ => {}
        }
        heard.drained.clone_from(drained);
        run_id.clone_into(&mut heard.run_id);
        None
    }

    /// What was lost stands in this Redis again.
    pub(crate) fn put_back(&self, run_id: &str) {
        run_id.clone_into(&mut self.heard.lock().run_id);
    }

    /// Somebody has resumed the worker, and another Redis process knows it.
    pub(crate) fn lift(&self, run_id: &str) {
        tracing::info!("resumed by an operator; taking new work");
        let mut heard = self.heard.lock();
        heard.drained = None;
        run_id.clone_into(&mut heard.run_id);
    }

    /// Returns true while no new work is to be taken.
    pub(crate) fn is_drained(&self) -> bool {
        self.heard.lock().drained.is_some()
    }

    /// The slots that others may count on: of a worker that takes nothing new, those that are busy still.
    pub(crate) fn slots(&self, busy: usize, all: usize) -> Slots {
        Slots { busy, all: if self.is_drained() { busy } else { all } }
    }
}

/// The lease of one worker, renewed by heartbeats.
pub(crate) struct Lease {
    store: Store,
    /// The beginning of the incarnations' names.
    name: String,
    /// Slices whose calls may run at the same time.
    slots: usize,
    clock: Arc<ShardClock>,
    lease_clock: Arc<LeaseClock>,
    configs: Arc<WorkerConfigs>,
    claims: Arc<Claims>,
    slices: Arc<HeldSlices>,
    quiet: Arc<Quiet>,
    outbox: Arc<Outbox>,
    metrics: Arc<Metrics>,
    progress: Progress,
}

impl Lease {
    /// A lease under names that begin with `name`, for a worker of so many `slots`.
    pub(crate) fn new(
        common: &Common,
        name: String,
        slots: usize,
        claims: &Arc<Claims>,
        slices: &Arc<HeldSlices>,
        outbox: &Arc<Outbox>,
    ) -> Self {
        Self {
            store: common.store.clone(),
            name,
            slots,
            clock: common.clock.clone(),
            lease_clock: common.lease_clock.clone(),
            configs: common.configs.clone(),
            claims: claims.clone(),
            slices: slices.clone(),
            quiet: common.quiet.clone(),
            outbox: outbox.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
        }
    }

    /// Groups, first heartbeat, and what was set at run time, before anything is read (rules 12 and 17).
    pub(crate) async fn prepare(&self) -> Result<ConsumerId, StoreError> {
        self.store.ensure_groups().await?;
        let consumer = tickfleet_store::incarnation("w", &self.name);
        self.lease_clock.forget();
        self.beat(&consumer).await?;
        Ok(consumer)
    }

    /// One heartbeat, with what it brings: time, tenants, turns that were cancelled.
    async fn beat(&self, consumer: &ConsumerId) -> Result<(), StoreError> {
        let sent = self.lease_clock.sending();
        let slots = self.quiet.slots(self.slices.busy(), self.slots);
        let beat = self.store.beat_with(consumer, slots, self.configs.load().active.short_digest()).await?;
        self.clock.set(beat.now_ms);
        // Redis tells of a cancel once: it is acted on before anything else can fail.
        self.slices.cancel(&beat.cancelled);
        self.hear_drained(consumer, &beat).await;
        self.claims.expect_marks_until(beat.marks_ms);
        self.claims.assert_after(&beat).await?;
        // Whoever was paused hears what has changed before anything else: a tool may have been switched off meanwhile.
        if self.lease_clock.is_fresh() {
            self.lease_clock.confirm(sent);
        }
        let announced = self.configs.refresh(&self.store).await?;
        self.lease_clock.confirm(sent);
        if let Some(generation) = announced {
            self.metrics.config_in_force(self.configs.load().active.short_digest(), generation);
        }
        Ok(())
    }

    /// Goes by what a heartbeat says of a drain, and puts back one that Redis has lost; what fails is tried with the next.
    async fn hear_drained(&self, consumer: &ConsumerId, beat: &Beat) {
        let Some(lost) = self.quiet.hear(&beat.drained, &beat.run_id) else { return };
        let Some(worker) = worker_of(consumer.as_str()) else { return };
        let restored = self.store.restore_drain(worker, &lost).await;
        match restored {
            Ok(Restored::Lifted) => self.quiet.lift(&beat.run_id),
            Ok(Restored::Ok) => {
                tracing::error!("drain flag was missing from Redis; restored");
                self.quiet.put_back(&beat.run_id);
            }
            // It is as lost as before, and nobody has resumed this worker.
            Ok(Restored::Full) | Err(_) => {
                tracing::error!(?restored, "drain flag is missing from Redis; failed to restore it yet");
            }
        }
    }

    /// Beats until the lease is lost, or until draining is done: running calls need their lease while they end.
    pub(crate) async fn beats(&self, consumer: &ConsumerId, stop: &CancellationToken, tracker: &TaskTracker) {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let every = lease / u32::try_from(limits::BEATS_PER_LEASE).unwrap_or(4);
        let handle = self.progress.register("beat", lease * 3 + Duration::from_secs(30));
        let mut rounds = 0;
        loop {
            tokio::time::sleep(every).await;
            if stop.is_cancelled() && tracker.is_empty() {
                handle.finished();
                return;
            }
            if let Err(error) = self.beat(consumer).await {
                tracing::warn!(%error, "heartbeat failed");
            }
            rounds += 1;
            if u64::is_multiple_of(rounds, limits::BEATS_PER_LEASE) {
                self.return_strays(consumer, lease).await;
            }
            handle.advanced();
            if self.lease_clock.is_lost() {
                self.metrics.lease_lost("worker");
                tracing::warn!("lease expired without a heartbeat; restarting under a new name");
                stop.cancel();
                handle.finished();
                return;
            }
        }
    }

    /// Rule 12: hands back what Redis says that we hold and memory does not know: nobody would take it from a
    /// consumer that lives.
    async fn return_strays(&self, consumer: &ConsumerId, lease: Duration) {
        match self.store.held_since(consumer, lease, LOST_MAX).await {
            Ok(held) => {
                for slice in held.iter().filter(|slice| !self.slices.holds(slice)) {
                    tracing::warn!(turn = %slice.name, "leased slice is not being executed; returning it");
                    self.outbox.hand_back(slice, Returned::Stray).await;
                }
            }
            Err(error) => tracing::debug!(%error, "failed to compare leased slices"),
        }
    }

    /// Hands back what was delivered to a read that was given up while it was answered: whoever leaves with it is taken for
    /// dead, and the slice for one that may have run.
    pub(crate) async fn return_unheard(&self, consumer: &ConsumerId) {
        match self.store.held_since(consumer, Duration::ZERO, LOST_MAX).await {
            Ok(held) => {
                for slice in held.iter().filter(|slice| !self.slices.holds(slice)) {
                    self.outbox.hand_back(slice, Returned::Stray).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "failed to return the last delivery; other workers take it over")
            }
        }
    }

    /// Gives the name up, so that nobody waits for its lease to end.
    pub(crate) async fn leave(&self, consumer: &ConsumerId) {
        if let Err(error) = self.store.leave(consumer).await {
            tracing::debug!(%error, "failed to release the lease; it expires by itself");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_drain_that_another_redis_does_not_know_is_put_back_and_one_that_was_lifted_is_not() {
        let (quiet, note) = (Quiet::default(), Pause { by: "anna".into(), reason: "a kernel".into(), since_ms: 7 });
        assert!(quiet.hear(&Some(note.clone()), "one").is_none() && quiet.is_drained());
        // As long as it is not put back, it is said again, and holds.
        for _ in 0..2 {
            assert_eq!(quiet.hear(&None, "two").as_ref(), Some(&note));
            assert!(quiet.is_drained());
        }
        quiet.put_back("two");
        assert!(quiet.hear(&Some(note), "two").is_none() && quiet.is_drained());
        assert!(quiet.hear(&None, "two").is_none() && !quiet.is_drained(), "somebody has lifted it");
        assert!(quiet.hear(&None, "three").is_none() && !quiet.is_drained());
        // Lifted in the seconds in which Redis was another one.
        let again = Pause { by: "anna".into(), reason: "a disk".into(), since_ms: 9 };
        assert!(quiet.hear(&Some(again), "three").is_none() && quiet.hear(&None, "four").is_some());
        quiet.lift("four");
        assert!(!quiet.is_drained() && quiet.hear(&None, "four").is_none());
    }
}
