//! A worker's lease: the name that holds the lease, and the heartbeats that renew it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_core::settings::drain::{ChangeDrain, DrainChange, DrainResult};
use tickfleet_core::workers::{EndLease, Heartbeat, LeaseBefore, Role, Slots};
use tickfleet_model::policy::Pause;
use tickfleet_model::{ConsumerId, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_store::{Store, StoreError, worker_of, worker_queues};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Common;
use crate::config::WorkerConfigs;
use crate::held_slices::HeldSlices;
use crate::journal::WorkerJournal;
use crate::lease_clock::LeaseClock;
use crate::strays::{StrayScope, Strays};

/// The store's restart epoch, and how often this worker found that the store had lost records.
type StoreRun = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct WorkerDrainFlag {
    reported: Mutex<ReportedDrain>,
}

#[derive(Debug, Default)]
struct ReportedDrain {
    drained: Option<Pause>,
    run: StoreRun,
}

impl WorkerDrainFlag {
    /// Returns the pause that the caller must store again: the worker stays drained although a new run of the store has
    /// lost the drain flag.
    pub(crate) fn report(&self, drained: Option<&Pause>, run: StoreRun) -> Option<Pause> {
        let mut reported = self.reported.lock();
        match (&reported.drained, drained) {
            (None, Some(Pause { by, reason, .. })) => {
                tracing::warn!(by, reason, "drained by an operator; finishing current work, taking no new work");
            }
            (Some(lost), None) if reported.run != run => return Some(lost.clone()),
            (Some(_), None) => tracing::info!("resumed by an operator; taking new work"),
            _ => {}
        }
        *reported = ReportedDrain { drained: drained.cloned(), run };
        None
    }

    pub(crate) fn restored(&self, run: StoreRun) {
        self.reported.lock().run = run;
    }

    pub(crate) fn lift(&self, run: StoreRun) {
        tracing::info!("resumed by an operator; taking new work");
        *self.reported.lock() = ReportedDrain { drained: None, run };
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.reported.lock().drained.is_some()
    }

    pub(crate) fn slots(&self, busy: usize, all: usize) -> Slots {
        Slots { busy, all: if self.is_drained() { busy } else { all } }
    }
}

pub(crate) struct Lease {
    store: Store,
    name: String,
    slots: usize,
    lease_clock: Arc<LeaseClock>,
    configs: Arc<WorkerConfigs>,
    journal: Arc<WorkerJournal>,
    slices: Arc<HeldSlices>,
    drain_flag: Arc<WorkerDrainFlag>,
    strays: Arc<Strays>,
    metrics: Arc<Metrics>,
    progress: Progress,
    /// How often the store had lost the worker's last heartbeat.
    losses: Mutex<u64>,
}

impl Lease {
    pub(crate) fn new(
        common: &Common,
        name: String,
        slots: usize,
        journal: &Arc<WorkerJournal>,
        slices: &Arc<HeldSlices>,
        strays: &Arc<Strays>,
    ) -> Self {
        Self {
            store: common.store.clone(),
            name,
            slots,
            lease_clock: common.lease_clock.clone(),
            configs: common.configs.clone(),
            journal: journal.clone(),
            slices: slices.clone(),
            drain_flag: common.drain_flag.clone(),
            strays: strays.clone(),
            metrics: common.metrics.clone(),
            progress: common.progress.clone(),
            losses: Mutex::default(),
        }
    }

    /// Must precede the first take of slices (invariants 12 and 16).
    pub(crate) async fn prepare(&self) -> Result<ConsumerId, StoreError> {
        self.store.ensure_groups().await?;
        let consumer = tickfleet_store::incarnation("w", &self.name);
        self.lease_clock.forget();
        self.heartbeat(&consumer).await?;
        Ok(consumer)
    }

    async fn heartbeat(&self, consumer: &ConsumerId) -> Result<(), StoreError> {
        let sent = self.lease_clock.sending();
        let is_first = self.lease_clock.is_new();
        let heartbeat = Heartbeat {
            consumer: consumer.clone(),
            role: self.role(consumer),
            lease_ms: self.store.options().lease_ms,
            policy: self.configs.load().active.short_digest().to_owned(),
        };
        let mut is_lost = false;
        let drained = loop {
            let report = self.store.decide(heartbeat.clone()).await?.result;
            // The store delivers each notice only once, so the notice is applied before anything else can fail.
            self.slices.cancel(&report.canceled);
            is_lost |= report.before == LeaseBefore::None && !is_first;
            if !report.more {
                break report.drained;
            }
        };
        if is_lost {
            self.state_lost();
        }
        let run = (self.store.state().epoch, *self.losses.lock());
        self.follow_drain(consumer, drained.as_ref(), run).await;
        self.journal.report().await?;
        // After a suspension of the worker, the settings are read before the lease is confirmed: a tool may be
        // disabled.
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

    fn role(&self, consumer: &ConsumerId) -> Role {
        let worker = worker_of(consumer.as_str()).unwrap_or(consumer.as_str()).to_owned();
        let Slots { busy, all } = self.drain_flag.slots(self.slices.busy(), self.slots);
        Role::Worker { worker, slots: Slots { busy, all } }
    }

    /// After a lost heartbeat, the store may have lost anything, even without a restart. So everything is reported
    /// again.
    fn state_lost(&self) {
        *self.losses.lock() += 1;
        self.metrics.state_lost();
        self.journal.mark_unreported();
        tracing::error!("the store has lost the worker's heartbeat; reporting begun calls again");
    }

    /// If the restore of a lost drain flag fails, the next heartbeat tries again.
    async fn follow_drain(&self, consumer: &ConsumerId, drained: Option<&Pause>, run: StoreRun) {
        let Some(lost) = self.drain_flag.report(drained, run) else { return };
        let Some(worker) = worker_of(consumer.as_str()) else { return };
        let restore = ChangeDrain { worker: worker.to_owned(), change: DrainChange::Restore { note: lost } };
        let restored = self.store.decide(restore).await.map(|receipt| receipt.result);
        match restored {
            Ok(DrainResult::Lifted) => self.drain_flag.lift(run),
            Ok(DrainResult::Done | DrainResult::Unchanged) => {
                tracing::error!("drain flag was missing from Redis; restored");
                self.drain_flag.restored(run);
            }
            Ok(DrainResult::Full) | Err(_) => {
                tracing::error!(?restored, "drain flag is missing from Redis; failed to restore it yet");
            }
        }
    }

    /// A draining worker needs heartbeats too: running calls need their lease until they end.
    pub(crate) async fn send_heartbeats(&self, consumer: &ConsumerId, stop: &CancellationToken, tracker: &TaskTracker) {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let every = lease / u32::try_from(limits::BEATS_PER_LEASE).unwrap_or(4);
        let handle = self.progress.register("heartbeat", lease * 3 + Duration::from_secs(30));
        let mut rounds = 0;
        loop {
            tokio::time::sleep(every).await;
            if stop.is_cancelled() && tracker.is_empty() {
                handle.finished();
                return;
            }
            if let Err(error) = self.heartbeat(consumer).await {
                tracing::warn!(%error, "heartbeat failed");
            }
            rounds += 1;
            if u64::is_multiple_of(rounds, limits::BEATS_PER_LEASE)
                && let Err(error) = self.strays.return_entries(consumer, &worker_queues(), StrayScope::SeenBefore).await
            {
                tracing::debug!(%error, "failed to compare leased slices");
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

    /// Returns entries of a dropped take. Otherwise, they would count as crashes of this worker when the lease ends.
    pub(crate) async fn return_undelivered(&self, consumer: &ConsumerId) {
        if let Err(error) = self.strays.return_entries(consumer, &worker_queues(), StrayScope::All).await {
            tracing::warn!(%error, "failed to return the last delivery; other workers take it over");
        }
    }

    /// Other processes then need not wait until the lease expires.
    pub(crate) async fn release(&self, consumer: &ConsumerId) {
        let end = EndLease { consumer: consumer.clone(), role: self.role(consumer) };
        if let Err(error) = self.store.decide(end).await {
            tracing::debug!(%error, "failed to release the lease; it expires by itself");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_drain_flag_survives_a_store_restart_unless_lifted() {
        let (drain_flag, note) =
            (WorkerDrainFlag::default(), Pause { by: "anna".into(), reason: "a kernel".into(), since_ms: 7 });
        assert!(drain_flag.report(Some(&note), (1, 0)).is_none() && drain_flag.is_drained());
        for _ in 0..2 {
            assert_eq!(drain_flag.report(None, (2, 0)).as_ref(), Some(&note));
            assert!(drain_flag.is_drained());
        }
        drain_flag.restored((2, 0));
        assert!(drain_flag.report(Some(&note), (2, 0)).is_none() && drain_flag.is_drained());
        assert!(drain_flag.report(None, (2, 0)).is_none() && !drain_flag.is_drained(), "an operator has lifted it");
        assert!(drain_flag.report(None, (3, 0)).is_none() && !drain_flag.is_drained());
        // The flag was lifted just before the store restarted.
        let again = Pause { by: "anna".into(), reason: "a disk".into(), since_ms: 9 };
        assert!(drain_flag.report(Some(&again), (3, 0)).is_none() && drain_flag.report(None, (3, 1)).is_some());
        drain_flag.lift((3, 1));
        assert!(!drain_flag.is_drained() && drain_flag.report(None, (3, 1)).is_none());
    }
}
