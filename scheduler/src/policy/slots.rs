//! The slots of the fleet's workers, and which tenants wait for a share of them.
//!
//! What a limit of slots allows is reckoned here and goes to the script as a number, like any other limit's. It is this
//! process' own view: what it has counted in the last second, and the lanes that it has looked at. So two schedulers may
//! reckon a little differently for a moment; the places that are held are the same for both.

use std::collections::HashMap;

use parking_lot::Mutex;
use tickfleet_model::limit::LimitBound;
use tickfleet_model::{Limit, TenantId};
use tickfleet_store::FleetLoad;

/// What is dispatched beyond what slots carry out waits about so long for a slot, ms: long enough that no slot waits for
/// work, and what another tenant's call then has in front of it.
const AHEAD_MS: u64 = 25;
/// Slots that are reckoned with where no worker shows signs of life: nothing runs then, and whatever is on its way when
/// one comes may take its slots.
const SLOTS_UNKNOWN: u64 = 1;
/// A tenant that was not seen to wait for so long has what it wants, ms.
const FORGET_MS: i64 = 2_000;

/// What is known of slots; empty at first.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    load: FleetLoad,
    /// Calls that end in a second.
    rate: u64,
    /// By limit: the tenants that wait for a place of it.
    waiting: HashMap<String, Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Weight, and when each was seen last, ms.
    tenants: HashMap<TenantId, (u64, i64)>,
    weights: u64,
    looked_ms: i64,
}

impl Waiting {
    /// Forgets who was not seen for long; looks at most ten times a second.
    fn forget(&mut self, now_ms: i64) {
        // A clock that was set back must not keep anybody for ever.
        if (0..100).contains(&(now_ms - self.looked_ms)) {
            return;
        }
        self.looked_ms = now_ms;
        self.tenants.retain(|_, (_, seen_ms)| (0..=FORGET_MS).contains(&(now_ms - *seen_ms)));
        self.weights = self.tenants.values().map(|(weight, _)| weight).sum();
    }
}

impl Slots {
    /// Takes a new count.
    pub(crate) fn counted(&self, load: &FleetLoad) {
        let mut known = self.known.lock();
        let since_ms = load.clock_ms - known.load.clock_ms;
        if known.load.clock_ms > 0 && since_ms > 0 {
            let calls = load.calls.saturating_sub(known.load.calls);
            let rate = calls.saturating_mul(1_000) / since_ms.unsigned_abs();
            // It falls slowly: a moment without work says nothing about how fast work is done.
            known.rate = rate.max(known.rate * 3 / 4);
        }
        known.load = *load;
    }

    /// A tenant has turns that wait for a place of a limit.
    pub(crate) fn waits(&self, limit: &str, tenant: &TenantId, weight: u64, now_ms: i64) {
        let mut known = self.known.lock();
        let waiting = match known.waiting.get_mut(limit) {
            Some(waiting) => waiting,
            None => known.waiting.entry(limit.to_owned()).or_default(),
        };
        let before = waiting.tenants.insert(tenant.clone(), (weight, now_ms)).map_or(0, |(weight, _)| weight);
        waiting.weights = waiting.weights - before.min(waiting.weights) + weight;
        waiting.forget(now_ms);
    }

    /// The places that a limit of slots gives a tenant now, in one of `shards`; none where it is no such limit.
    pub(crate) fn places(&self, limit: &Limit, tenant: &TenantId, shards: u32, now_ms: i64) -> Option<u64> {
        if !limit.bound.is_of_slots() {
            return None;
        }
        let mut known = self.known.lock();
        let slots = if known.load.slots > 0 { known.load.slots } else { SLOTS_UNKNOWN };
        let places = match limit.bound {
            LimitBound::Part(percent) => {
                let places = slots * percent / 100;
                if limit.is_of_tenants() { places } else { places / u64::from(shards.max(1)) }
            }
            _ => {
                let depth = slots + (slots / 4).max(known.rate.saturating_mul(AHEAD_MS) / 1_000);
                let weight = limit.bound.max();
                let others = known.waiting.get_mut(&limit.name).map_or(0, |waiting| {
                    waiting.forget(now_ms);
                    let own = waiting.tenants.get(tenant).map_or(0, |(weight, _)| *weight);
                    waiting.weights.saturating_sub(own)
                });
                (depth * weight + others / 2) / (weight + others)
            }
        };
        Some(places.max(1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use tickfleet_model::limit::{Every, LimitKey, LimitMatch, LimitMode, OnReach};

    use super::*;

    fn limit(bound: LimitBound, key: LimitKey) -> Limit {
        Limit {
            name: "slots".into(),
            matches: LimitMatch::default(),
            per: BTreeSet::from([key]),
            bound,
            every: Every::Held,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        }
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn fleet(slots: u64, calls: u64, clock_ms: i64) -> FleetLoad {
        FleetLoad { slots, calls, clock_ms }
    }

    #[test]
    fn a_part_of_the_slots_is_divided_among_shards_and_never_nothing() {
        let slots = Slots::default();
        let part = |percent, key| slots.places(&limit(LimitBound::Part(percent), key), &tenant("acme"), 4, 0);
        assert_eq!(part(50, LimitKey::Tenant), Some(1), "before any worker was seen");
        slots.counted(&fleet(80, 0, 1_000));
        assert_eq!((part(50, LimitKey::Tenant), part(50, LimitKey::Tool)), (Some(40), Some(10)));
        assert_eq!(part(1, LimitKey::Tool), Some(1));
        let concurrent = limit(LimitBound::Concurrent(3), LimitKey::Tool);
        assert_eq!(slots.places(&concurrent, &tenant("acme"), 4, 0), None, "that is a number of its own");
    }

    #[test]
    fn whoever_is_alone_has_all_slots_and_those_who_wait_share_them_by_weight() {
        let slots = Slots::default();
        slots.counted(&fleet(40, 0, 1_000));
        let share = |name, weight, now_ms| {
            slots.places(&limit(LimitBound::Share(weight), LimitKey::Tenant), &tenant(name), 1, now_ms).unwrap()
        };
        assert_eq!(share("acme", 1, 0), 50, "the slots, and a quarter that waits for them");
        slots.waits("slots", &tenant("acme"), 1, 10);
        assert_eq!(share("acme", 1, 10), 50, "nobody else waits");
        assert_eq!(share("globex", 4, 10), 40, "whoever comes has its share at once");
        slots.waits("slots", &tenant("globex"), 4, 20);
        slots.waits("slots", &tenant("globex"), 4, 30);
        assert_eq!((share("acme", 1, 30), share("globex", 4, 30)), (10, 40));
        // What one does not wait for any more is the other's.
        slots.waits("slots", &tenant("acme"), 1, 2_050);
        assert_eq!(share("acme", 1, 2_200), 50);
        // A clock that was set back keeps nobody.
        slots.waits("slots", &tenant("globex"), 4, 2_200);
        assert_eq!(share("acme", 1, -90_000_000), 50);
    }

    #[test]
    fn fast_calls_have_more_on_their_way() {
        let slots = Slots::default();
        slots.counted(&fleet(16, 1_000, 1_000));
        let alone = || slots.places(&limit(LimitBound::Share(1), LimitKey::Tenant), &tenant("acme"), 1, 0).unwrap();
        assert_eq!(alone(), 20);
        slots.counted(&fleet(16, 9_000, 2_000));
        assert_eq!(alone(), 16 + 200, "25 ms of 8,000 calls a second");
        // The audit log was deleted, and nothing came since: it falls slowly.
        slots.counted(&fleet(16, 0, 3_000));
        assert_eq!(alone(), 16 + 150);
    }
}
