//! The slots that slices run in, and the permits for held slices. A held slice is taken and not yet settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tickfleet_engine::suspect_permit::SuspectPermit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The first permit is for a slot, the second for holding a slice.
pub(crate) type SlotPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

pub(crate) struct SlotPool {
    slots: Arc<Semaphore>,
    busy: Arc<AtomicUsize>,
    /// Permits for held slices. They limit the results that wait in memory while the store is unreachable (invariant
    /// 6).
    held: Arc<Semaphore>,
}

impl SlotPool {
    pub(crate) fn new(slots: usize, held: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slots)), busy: Arc::default(), held: Arc::new(Semaphore::new(held)) }
    }

    /// Returns 0 if the pool is closed. Reserves nothing: suspects may take the slots meanwhile.
    pub(crate) async fn wait_for_free_slots(&self) -> usize {
        let Some(room) = self.reserve().await else { return 0 };
        let free = self.free() + 1;
        drop(room);
        free
    }

    pub(crate) fn free(&self) -> usize {
        self.slots.available_permits().min(self.held.available_permits())
    }

    pub(crate) fn try_reserve(&self) -> Option<SlotPermits> {
        let slot = self.slots.clone().try_acquire_owned().ok()?;
        Some((slot, self.held.clone().try_acquire_owned().ok()?))
    }

    pub(crate) async fn reserve(&self) -> Option<SlotPermits> {
        let permits = (self.slots.clone().acquire_owned().await, self.held.clone().acquire_owned().await);
        match permits {
            (Ok(slot), Ok(held)) => Some((slot, held)),
            (Err(_), _) | (_, Err(_)) => None,
        }
    }

    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, permit: OwnedSemaphorePermit) -> Slot {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Slot { _permit: Some(permit), _group: None, busy: Arc::clone(&self.busy) }
    }

    /// Begins the first slice of a group. The slot's permit belongs to the group, not to the slice.
    pub(crate) fn begin_first(&self, group: &Arc<SuspectGroup>) -> Slot {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Slot { _permit: None, _group: Some(Arc::clone(group)), busy: Arc::clone(&self.busy) }
    }
}

/// The right to run a group of suspects. The next group waits until all slots of this group are free.
pub(crate) struct SuspectGroup {
    _slot: OwnedSemaphorePermit,
    _look: SuspectPermit,
}

impl SuspectGroup {
    pub(crate) const fn new(slot: OwnedSemaphorePermit, look: SuspectPermit) -> Self {
        Self { _slot: slot, _look: look }
    }
}

pub(crate) struct Slot {
    _permit: Option<OwnedSemaphorePermit>,
    _group: Option<Arc<SuspectGroup>>,
    busy: Arc<AtomicUsize>,
}

impl Slot {
    pub(crate) fn of_group(mut self, group: &Arc<SuspectGroup>) -> Self {
        self._group = Some(Arc::clone(group));
        self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_engine::suspect_permit::SuspectSemaphore;

    use super::*;

    #[tokio::test]
    async fn a_suspect_group_holds_its_slot_until_its_last_slice_ends() {
        let suspects = SlotPool::new(1, 1);
        let others = SlotPool::new(2, 2);
        let right = SuspectSemaphore::default();
        let (slot, _held) = suspects.try_reserve().unwrap();
        let group = Arc::new(SuspectGroup::new(slot, right.acquire().await));
        let first = suspects.begin_first(&group);
        let second = others.begin(others.try_reserve().unwrap().0).of_group(&group);
        drop(group);
        assert_eq!((suspects.busy(), others.busy(), others.free()), (1, 1, 1));
        drop(first);
        assert_eq!(suspects.busy(), 0);
        assert!(suspects.slots.clone().try_acquire_owned().is_err(), "its second slice still runs");
        drop(second);
        assert!(suspects.slots.clone().try_acquire_owned().is_ok());
    }

    #[tokio::test]
    async fn waiting_for_free_slots_reserves_none() {
        let pool = SlotPool::new(3, 2);
        assert_eq!(pool.wait_for_free_slots().await, 2);
        assert_eq!((pool.free(), pool.busy()), (2, 0));
        let room = pool.try_reserve();
        assert!(room.is_some() && pool.wait_for_free_slots().await == 1);
    }
}
