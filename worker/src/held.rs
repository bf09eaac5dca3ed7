//! The slices that a worker holds, and where they run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tickfleet_store::{SliceEntry, TurnName};
use tokio_util::sync::CancellationToken;

use crate::lane::Lane;

/// Slices held per slot: results on their way to Redis do not keep a slot, but they are bounded.
const HELD_PER_SLOT: usize = 4;
/// Slices held at least, so that few slots still settle in batches.
const HELD_MIN: usize = 512;

/// Returns how many slices a worker of so many slots may hold.
pub(crate) fn held_max(slots: usize) -> usize {
    (slots * HELD_PER_SLOT).max(HELD_MIN)
}

/// The slices that are held, and the lanes that they run in.
pub(crate) struct HeldSlices {
    /// The lane of slices that no holder has died with.
    lane: Lane,
    /// The lane of slices that a holder has died with: one at a time, in nobody else's place (rules 12 and 23).
    suspects: Lane,
    /// By their turns, to be told of a cancel.
    running: Mutex<HashMap<TurnName, Held>>,
}

/// A slice that is held.
struct Held {
    fence: String,
    hold: Hold,
}

/// The conditions under which a slice is held.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    /// Cancelled with the turn.
    pub(crate) cancel: CancellationToken,
    /// The worker's incarnation that leased it.
    pub(crate) term: u64,
    /// True once a call ran until its turn's deadline. The estimated clock can move back by a few milliseconds, and the
    /// next call must not slip in.
    deadline_passed: Arc<AtomicBool>,
}

impl Hold {
    /// A hold of incarnation `term` that is not cancelled.
    pub(crate) fn new(term: u64) -> Self {
        Self { cancel: CancellationToken::new(), term, deadline_passed: Arc::default() }
    }

    /// Records that a call used up the time until its turn's deadline.
    pub(crate) fn pass_deadline(&self) {
        self.deadline_passed.store(true, Ordering::Relaxed);
    }

    /// Returns true if a call used up the time until its turn's deadline.
    pub(crate) fn deadline_passed(&self) -> bool {
        self.deadline_passed.load(Ordering::Relaxed)
    }
}

impl HeldSlices {
    /// None held, in lanes for `slots` slices and one suspect.
    pub(crate) fn new(slots: usize) -> Self {
        Self { lane: Lane::new(slots, held_max(slots)), suspects: Lane::new(1, 1), running: Mutex::default() }
    }

    /// The lane of suspects, or of all other slices.
    pub(crate) const fn lane(&self, suspects: bool) -> &Lane {
        if suspects { &self.suspects } else { &self.lane }
    }

    /// Slices that are carried out, the suspect beside the slots included: whoever looks on wants to see it.
    pub(crate) fn busy(&self) -> usize {
        self.lane.busy() + self.suspects.busy()
    }

    /// Remembers that the slice is held since `term`; the answer is cancelled when somebody cancels its turn.
    pub(crate) fn hold(&self, slice: &SliceEntry, term: u64) -> Hold {
        let hold = Hold::new(term);
        let held = Held { fence: slice.fence.clone(), hold: hold.clone() };
        self.running().insert(slice.name.clone(), held);
        hold
    }

    /// Returns true if the slice is held.
    pub(crate) fn holds(&self, slice: &SliceEntry) -> bool {
        self.running().get(&slice.name).is_some_and(|held| held.fence == slice.fence)
    }

    /// The slice is held no more.
    pub(crate) fn let_go(&self, name: &TurnName, fence: &str) {
        let mut running = self.running();
        // A later slice of the same turn may be held already.
        if running.get(name).is_some_and(|held| held.fence == fence) {
            running.remove(name);
        }
    }

    /// Tells slices that their turns are cancelled.
    pub(crate) fn cancel(&self, turns: &[TurnName]) {
        let running = self.running();
        for turn in turns {
            if let Some(held) = running.get(turn) {
                tracing::info!(%turn, "turn cancelled while running");
                held.hold.cancel.cancel();
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<TurnName, Held>> {
        self.running.lock()
    }
}
