use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tickfleet_core::EntryId;
use tickfleet_core::keys::TurnName;
use tickfleet_core::turn::Slice;
use tokio_util::sync::CancellationToken;

use crate::slot_pool::SlotPool;

/// The slices that a worker may hold for each slot. A slice with results that wait for the store occupies no slot, but
/// counts.
const HELD_PER_SLOT: usize = 4;
/// With this minimum, a worker with few slots can still settle in batches.
const HELD_MIN: usize = 512;

pub(crate) fn held_max(slots: usize) -> usize {
    (slots * HELD_PER_SLOT).max(HELD_MIN)
}

pub(crate) struct HeldSlices {
    /// The slots of regular slices. All suspects of a group except the first one use these slots too.
    pool: SlotPool,
    /// The slot of the first suspect of a group, which takes no slot from other slices (invariant 17). Suspects are
    /// slices that were redelivered after a crash.
    suspects: SlotPool,
    /// By turn, so that a cancellation notice finds its slice.
    running: Mutex<HashMap<TurnName, RunningSlice>>,
}

struct RunningSlice {
    /// Identifies the slice: the slice's version changes while the slice is held.
    entry: EntryId,
    lease: SliceLease,
}

#[derive(Debug, Clone)]
pub(crate) struct SliceLease {
    pub(crate) cancel: CancellationToken,
    /// The incarnation of the worker that took the slice.
    pub(crate) term: u64,
    /// The store's restart epoch before the take. After a restart, another worker may also hold the slice.
    pub(crate) epoch: u64,
    /// Stays set after the deadline. Otherwise, the next call would run if the estimated clock moved back by a few
    /// milliseconds.
    deadline_passed: Arc<AtomicBool>,
}

impl SliceLease {
    pub(crate) fn new(term: u64, epoch: u64) -> Self {
        Self { cancel: CancellationToken::new(), term, epoch, deadline_passed: Arc::default() }
    }

    pub(crate) fn pass_deadline(&self) {
        self.deadline_passed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn deadline_passed(&self) -> bool {
        self.deadline_passed.load(Ordering::Relaxed)
    }
}

impl HeldSlices {
    pub(crate) fn new(slots: usize) -> Self {
        Self { pool: SlotPool::new(slots, held_max(slots)), suspects: SlotPool::new(1, 1), running: Mutex::default() }
    }

    pub(crate) const fn pool(&self, suspects: bool) -> &SlotPool {
        if suspects { &self.suspects } else { &self.pool }
    }

    pub(crate) fn busy(&self) -> usize {
        self.pool.busy() + self.suspects.busy()
    }

    /// Adds a slice. Its lease is canceled when a heartbeat reports that the turn was canceled.
    pub(crate) fn add(&self, slice: &Slice, term: u64, epoch: u64) -> SliceLease {
        let lease = SliceLease::new(term, epoch);
        let held = RunningSlice { entry: slice.entry.clone(), lease: lease.clone() };
        self.running().insert(slice.name.clone(), held);
        lease
    }

    pub(crate) fn contains(&self, name: &TurnName, entry: &EntryId) -> bool {
        self.running().get(name).is_some_and(|held| held.entry == *entry)
    }

    pub(crate) fn remove(&self, name: &TurnName, entry: &EntryId) {
        let mut running = self.running();
        // The worker may already hold a later slice of the same turn.
        if running.get(name).is_some_and(|held| held.entry == *entry) {
            running.remove(name);
        }
    }

    pub(crate) fn cancel(&self, turns: &[TurnName]) {
        let running = self.running();
        for turn in turns {
            if let Some(held) = running.get(turn) {
                tracing::info!(%turn, "turn canceled while running");
                held.lease.cancel.cancel();
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<TurnName, RunningSlice>> {
        self.running.lock()
    }
}
