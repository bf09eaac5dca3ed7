//! The slots of the fleet's workers, and the tenants that wait for a share of the slots. The numbers depend on data of
//! this process, so two schedulers can disagree for a moment. Both count the same permits.

use std::collections::HashMap;

use parking_lot::Mutex;
use tickfleet_model::limit::LimitBound;
use tickfleet_model::{Limit, TenantId};
use tickfleet_store::FleetLoad;

/// Slices are dispatched about this long before a slot becomes idle, so that no slot waits. New calls of other tenants
/// wait as long behind these slices.
const AHEAD_MS: u64 = 25;
/// At least this number of slices is dispatched in addition to the slots. With fewer, slots of small fleets would be
/// idle after each call.
const AHEAD_MIN: u64 = 2;
/// The assumed number of slots while no worker sends heartbeats. Dispatched slices then do not run until the next
/// worker starts.
const SLOTS_UNKNOWN: u64 = 1;
/// A tenant without a waiting turn for this time no longer limits the other tenants.
const FORGET_MS: i64 = 2_000;

#[derive(Debug, Default)]
pub(crate) struct WorkerSlots {
    state: Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    load: FleetLoad,
    /// Slices that workers read per second.
    rate: u64,
    /// Turns that arrived at this process since `load` was read. Some of them may already be dispatched.
    taken: u64,
    waiting: HashMap<String, WaitingTenants>,
}

#[derive(Debug, Default)]
struct WaitingTenants {
    /// (weight, time in ms at which a waiting turn of the tenant was last recorded)
    tenants: HashMap<TenantId, (u64, i64)>,
    weights: u64,
    looked_ms: i64,
}

impl SlotState {
    fn slots(&self) -> u64 {
        if self.load.slots > 0 { self.load.slots } else { SLOTS_UNKNOWN }
    }

    /// Returns the number of slices to dispatch: more than the slots, so that no slot is idle.
    fn depth(&self) -> u64 {
        self.slots() + (self.slots() / 4).max(AHEAD_MIN).max(self.rate.saturating_mul(AHEAD_MS) / 1_000)
    }

    /// Adds the arrivals since `load` was read. Assumes that workers read these arrivals at the known rate.
    fn in_flight(&self, now_ms: i64) -> u64 {
        let since_ms = (now_ms - self.load.now_ms).max(0).unsigned_abs();
        self.load.in_flight + self.taken.saturating_sub(self.rate.saturating_mul(since_ms) / 1_000)
    }
}

impl WaitingTenants {
    /// Does nothing if the last call was less than 100 ms ago.
    fn drop_unseen(&mut self, now_ms: i64) {
        // A negative difference means that the clock was set back. Tenants must be dropped even then.
        if (0..100).contains(&(now_ms - self.looked_ms)) {
            return;
        }
        self.looked_ms = now_ms;
        self.tenants.retain(|_, (_, seen_ms)| (0..=FORGET_MS).contains(&(now_ms - *seen_ms)));
        self.weights = self.tenants.values().map(|(weight, _)| weight).sum();
    }
}

impl WorkerSlots {
    pub(crate) fn set_load(&self, load: &FleetLoad) {
        let mut state = self.state.lock();
        let since_ms = load.now_ms - state.load.now_ms;
        if let (Some(before), Some(read), 1..) = (state.load.read, load.read, since_ms)
            && state.load.now_ms > 0
        {
            let rate = read.saturating_sub(before).saturating_mul(1_000) / since_ms.unsigned_abs();
            // The rate falls slowly, because a moment without work does not show how fast workers are.
            state.rate = rate.max(state.rate * 3 / 4);
        }
        (state.load, state.taken) = (*load, 0);
    }

    pub(crate) fn count_arrival(&self) {
        self.state.lock().taken += 1;
    }

    /// True if the slots cannot soon run the dispatched slices, or if a tenant waits for a share of the slots. Workers
    /// of older builds report no slots, and then only waiting tenants count.
    pub(crate) fn has_shortage(&self, limit: &str, now_ms: i64) -> bool {
        let mut state = self.state.lock();
        let waits = state.waiting.get_mut(limit).is_some_and(|waiting| {
            waiting.drop_unseen(now_ms);
            !waiting.tenants.is_empty()
        });
        waits || (state.load.slots > 0 && state.in_flight(now_ms) > state.depth())
    }

    pub(crate) fn record_waiting(&self, limit: &str, tenant: &TenantId, weight: u64, now_ms: i64) {
        let mut state = self.state.lock();
        let waiting = match state.waiting.get_mut(limit) {
            Some(waiting) => waiting,
            None => state.waiting.entry(limit.to_owned()).or_default(),
        };
        let before = waiting.tenants.insert(tenant.clone(), (weight, now_ms)).map_or(0, |(weight, _)| weight);
        waiting.weights = waiting.weights - before.min(waiting.weights) + weight;
        waiting.drop_unseen(now_ms);
    }

    pub(crate) fn max_permits(&self, limit: &Limit, tenant: &TenantId, shards: u32, now_ms: i64) -> Option<u64> {
        if !limit.bound.is_of_slots() {
            return None;
        }
        let mut state = self.state.lock();
        let permits = match limit.bound {
            LimitBound::Part(percent) => limit.permits_of(percent, state.slots(), shards),
            _ => {
                let depth = state.depth();
                let weight = limit.bound.max();
                let others = state.waiting.get_mut(&limit.name).map_or(0, |waiting| {
                    waiting.drop_unseen(now_ms);
                    let own = waiting.tenants.get(tenant).map_or(0, |(weight, _)| *weight);
                    waiting.weights.saturating_sub(own)
                });
                (depth * weight + others / 2) / (weight + others)
            }
        };
        Some(permits.max(1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use tickfleet_model::limit::{LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};

    use super::*;

    fn limit(bound: LimitBound, key: LimitKey) -> Limit {
        Limit {
            name: "slots".into(),
            matches: LimitMatch::default(),
            per: BTreeSet::from([key]),
            bound,
            every: LimitWindow::Concurrency,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        }
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn fleet(slots: u64, read: u64, now_ms: i64) -> FleetLoad {
        FleetLoad { slots, in_flight: 0, read: Some(read), now_ms }
    }

    #[test]
    fn a_percentage_of_slots_is_divided_among_shards_and_at_least_one() {
        let slots = WorkerSlots::default();
        let part = |percent, key| slots.max_permits(&limit(LimitBound::Part(percent), key), &tenant("acme"), 4, 0);
        assert_eq!(part(50, LimitKey::Tenant), Some(1), "before any worker was seen");
        slots.set_load(&fleet(80, 0, 1_000));
        assert_eq!((part(50, LimitKey::Tenant), part(50, LimitKey::Tool)), (Some(40), Some(10)));
        assert_eq!(part(1, LimitKey::Tool), Some(1));
        let concurrent = limit(LimitBound::Concurrent(3), LimitKey::Tool);
        assert_eq!(slots.max_permits(&concurrent, &tenant("acme"), 4, 0), None, "that is a number of its own");
    }

    #[test]
    fn a_lone_tenant_gets_all_slots_and_waiting_tenants_share_by_weight() {
        let slots = WorkerSlots::default();
        slots.set_load(&fleet(40, 0, 1_000));
        let share = |name, weight, now_ms| {
            slots.max_permits(&limit(LimitBound::Share(weight), LimitKey::Tenant), &tenant(name), 1, now_ms).unwrap()
        };
        assert_eq!(share("acme", 1, 0), 50, "the slots, and a quarter that waits for them");
        slots.record_waiting("slots", &tenant("acme"), 1, 10);
        assert_eq!(share("acme", 1, 10), 50, "nobody else waits");
        assert_eq!(share("globex", 4, 10), 40, "whoever comes has its share at once");
        slots.record_waiting("slots", &tenant("globex"), 4, 20);
        slots.record_waiting("slots", &tenant("globex"), 4, 30);
        assert_eq!((share("acme", 1, 30), share("globex", 4, 30)), (10, 40));
        // When a tenant no longer waits, the others can use its share.
        slots.record_waiting("slots", &tenant("acme"), 1, 2_050);
        assert_eq!(share("acme", 1, 2_200), 50);
        // After the clock was set back, the tenants that were recorded before must not count as waiting.
        slots.record_waiting("slots", &tenant("globex"), 4, 2_200);
        assert_eq!(share("acme", 1, -90_000_000), 50);
    }

    #[test]
    fn fast_calls_allow_more_slices_in_flight() {
        let slots = WorkerSlots::default();
        slots.set_load(&fleet(16, 1_000, 1_000));
        let alone =
            || slots.max_permits(&limit(LimitBound::Share(1), LimitKey::Tenant), &tenant("acme"), 1, 0).unwrap();
        assert_eq!(alone(), 20);
        slots.set_load(&fleet(16, 9_000, 2_000));
        assert_eq!(alone(), 16 + 200, "25 ms of 8,000 calls a second");
        // The streams were deleted and recreated, and workers have read nothing since then.
        slots.set_load(&fleet(16, 0, 3_000));
        assert_eq!(alone(), 16 + 150);
    }

    #[test]
    fn slots_are_short_while_too_many_slices_are_out_or_a_tenant_waits() {
        let slots = WorkerSlots::default();
        slots.set_load(&FleetLoad { in_flight: 10, ..fleet(16, 0, 1_000) });
        let has_shortage = |now_ms| slots.has_shortage("slots", now_ms);
        (0..10).for_each(|_| slots.count_arrival());
        assert!(!has_shortage(1_000), "20 slices for 16 slots and four that wait for one");
        slots.count_arrival();
        assert!(has_shortage(1_000));
        // At the known rate of 100 slices per second, workers have read the 20 slices after 200 ms.
        slots.set_load(&FleetLoad { in_flight: 20, ..fleet(16, 100, 2_000) });
        (0..20).for_each(|_| slots.count_arrival());
        assert!(has_shortage(2_000) && !has_shortage(2_200));
        slots.record_waiting("slots", &tenant("acme"), 1, 2_200);
        assert!(
            has_shortage(2_200) && has_shortage(4_200) && !has_shortage(4_400),
            "two seconds after the last that waited"
        );
        // If Redis cannot report the number of read slices, the last rate stays.
        slots.set_load(&FleetLoad { in_flight: 20, read: None, ..fleet(16, 0, 5_000) });
        slots.set_load(&FleetLoad { in_flight: 20, ..fleet(16, 90_000, 6_000) });
        (0..20).for_each(|_| slots.count_arrival());
        assert!(has_shortage(6_000) && !has_shortage(6_200));
        slots.set_load(&FleetLoad { in_flight: 500, ..fleet(0, 90_000, 7_000) });
        assert!(!has_shortage(7_000));
    }
}
