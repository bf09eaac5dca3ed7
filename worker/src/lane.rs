//! The lanes that slices run in: slots, and a bound on what is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tickfleet_engine::one_suspect::Look;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for one slice: its slot, and its share of what may be held unsettled.
pub(crate) type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// Slots, and what may be held in them.
pub(crate) struct Lane {
    /// Slices whose calls run.
    slots: Arc<Semaphore>,
    /// The number of them that carry out a slice. The free permits do not tell: while a lease is waited for, the
    /// leasing loop holds them.
    busy: Arc<AtomicUsize>,
    /// Slices that are held: leased and not yet settled. Bounds what Redis' absence can pile up (rule 6).
    held: Arc<Semaphore>,
}

impl Lane {
    /// A lane of `slots` slots, in which `held` slices may be held.
    pub(crate) fn new(slots: usize, held: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slots)), busy: Arc::default(), held: Arc::new(Semaphore::new(held)) }
    }

    /// Waits for a free slot and takes all that are free. Dropped before it answers, it has taken none.
    pub(crate) async fn room(&self) -> Vec<Room> {
        let mut room = Vec::new();
        room.extend(self.room_for_one().await);
        while let Ok(slot) = self.slots.clone().try_acquire_owned() {
            let Ok(held) = self.held.clone().try_acquire_owned() else { break };
            room.push((slot, held));
        }
        room
    }

    /// Waits for room for one slice; none if the lane is closed.
    pub(crate) async fn room_for_one(&self) -> Option<Room> {
        let permits = (self.slots.clone().acquire_owned().await, self.held.clone().acquire_owned().await);
        match permits {
            (Ok(slot), Ok(held)) => Some((slot, held)),
            (Err(_), _) | (_, Err(_)) => None,
        }
    }

    /// Slots that carry out a slice.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// A slot of this lane that begins to carry out a slice.
    pub(crate) fn take(&self, permit: OwnedSemaphorePermit) -> Slot {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Slot { _permit: permit, look: None, busy: Arc::clone(&self.busy) }
    }
}

/// A slot that carries out a slice, from its lease until its last call has run.
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    /// The right to carry out a suspect.
    #[allow(dead_code, reason = "it is held")]
    look: Option<Look>,
    busy: Arc<AtomicUsize>,
}

impl Slot {
    /// The slot gives the right back when it is free.
    pub(crate) fn with(mut self, look: Look) -> Self {
        self.look = Some(look);
        self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
