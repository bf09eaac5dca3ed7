//! Reads the counters of a limit in all shards, up to a maximum number.

use std::collections::{BTreeMap, BTreeSet};

use std::borrow::Cow;
use tickfleet_client::Client;

use tickfleet_model::limit::LimitWindow;
use tickfleet_model::limit::counters::{OTHERS, tenant_of};
use tickfleet_model::{Limit, Policy};
use tickfleet_store::{CounterFacts, CounterName, SeenCounters};

use crate::failure::Failure;

/// Per shard. Reading this many takes about 20 short commands.
pub(super) const COUNTERS_MAX: usize = 10_000;

pub(super) struct Shard<'a> {
    pub(super) store: &'a tickfleet_store::Store,
    pub(super) now_ms: i64,
}

pub(super) async fn shards(client: &Client) -> Result<Vec<Shard<'_>>, Failure> {
    let mut shards = Vec::with_capacity(client.stores().len());
    for store in client.stores() {
        shards.push(Shard { store, now_ms: store.now_ms().await? });
    }
    Ok(shards)
}

pub(super) fn names(known: &[Limit]) -> BTreeSet<String> {
    known.iter().map(|limit| limit.name.clone()).collect()
}

/// Each shard has its own counter `OTHERS`, except if the limit is divided among shards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CounterKey {
    pub(super) counter: String,
    pub(super) shard: Option<u32>,
}

/// Summed over all shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Calls, or millionths of an amount, in windows that have not ended.
    pub(super) used: u64,
    /// When the last of these windows ends, in shard time. `None` if all windows have ended.
    pub(super) ends_ms: Option<i64>,
    pub(super) shards: BTreeSet<u32>,
    /// The maximum of all shards together; `None` if unknown.
    pub(super) allowed: Option<u64>,
    /// Shards with a used-up share of the maximum.
    pub(super) full_in: u32,
}

#[derive(Debug, Default)]
pub(super) struct LimitCounters {
    pub(super) counters: BTreeMap<CounterKey, Tally>,
    pub(super) total: u64,
    pub(super) counters_read: u64,
    pub(super) complete: bool,
}

fn applicable_limit<'l>(limit: &'l Limit, counter: &str, policy: &Policy) -> Cow<'l, Limit> {
    let owner = tenant_of(limit, counter).and_then(|tenant| policy.tenants.get(&tenant));
    owner.map_or(Cow::Borrowed(limit), |owner| owner.limit(limit))
}

impl LimitCounters {
    /// `limit` is the definition of the limit, if known. `policy` has the tenants' own bounds.
    pub(super) async fn of(
        shards: &[Shard<'_>],
        (name, limit): (&str, Option<&Limit>),
        policy: &Policy,
    ) -> Result<Self, Failure> {
        let mut counters = Self { complete: true, ..Self::default() };
        for shard in shards {
            let is_held = limit.is_some_and(|limit| limit.every == LimitWindow::Concurrency);
            let found = shard.store.counters(name, is_held, COUNTERS_MAX).await?;
            let place = (shard.store.shard(), shard.store.options().shards);
            counters.add(found, limit, (place, shard.now_ms), policy);
        }
        Ok(counters)
    }

    fn add(
        &mut self,
        found: SeenCounters,
        limit: Option<&Limit>,
        ((shard, shards), now_ms): ((u32, u32), i64),
        policy: &Policy,
    ) {
        self.total += found.counters.len() as u64;
        self.counters_read += found.counters.len() as u64;
        self.complete &= found.complete;
        let is_shared = limit.is_some_and(|limit| !limit.is_of_tenants());
        for (counter, facts) in found.counters {
            let applicable_limit = limit.map(|limit| applicable_limit(limit, &counter, policy));
            let fixed = applicable_limit.as_ref().filter(|limit| !limit.bound.is_of_slots());
            let share = fixed.map(|limit| limit.share(shard, shards));
            let of_shard = (counter == OTHERS && !is_shared).then_some(shard);
            let tally = self.counters.entry(CounterKey { counter, shard: of_shard }).or_default();
            tally.shards.insert(shard);
            tally.allowed = fixed.map(|limit| limit.bound.max());
            let CounterFacts { used, ends_ms, held } = facts;
            // After its end, a fixed window does not count. A rolling counter can include amounts that have left its
            // window, so its use is an upper bound.
            let is_rolling = limit.is_some_and(|limit| matches!(limit.every, LimitWindow::Rolling(_)));
            let counts = ends_ms > now_ms || is_rolling;
            if counts {
                tally.used = tally.used.saturating_add(used);
                tally.ends_ms = tally.ends_ms.max((!is_rolling).then_some(ends_ms));
            }
            tally.used = tally.used.saturating_add(held);
            let used = held + if counts { used } else { 0 };
            tally.full_in += u32::from(share.is_some_and(|share| used > 0 && used >= share));
        }
    }
}

/// In the order of `counters`. `None` for the counter `OTHERS`, because turns that wait for it are in other queues.
pub(super) async fn waiting(
    shards: &[Shard<'_>],
    limit: &str,
    counters: &[(CounterKey, Tally)],
) -> Result<Vec<Option<u64>>, Failure> {
    let mut waiting: Vec<Option<u64>> = counters.iter().map(|(key, _)| (key.counter != OTHERS).then_some(0)).collect();
    for shard in shards {
        let number = shard.store.shard();
        let here: Vec<usize> = (0..counters.len())
            .filter(|at| waiting[*at].is_some() && counters[*at].1.shards.contains(&number))
            .collect();
        let name = |at: &usize| CounterName { limit: limit.to_owned(), counter: counters[*at].0.counter.clone() };
        let names: Vec<CounterName> = here.iter().map(name).collect();
        let found = shard.store.waiting_for(&names).await?;
        for (at, turns) in here.into_iter().zip(found) {
            waiting[at] = waiting[at].map(|known| known + turns);
        }
    }
    Ok(waiting)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};

    use super::*;

    fn limit(per: &[LimitKey]) -> Limit {
        Limit {
            name: "x".into(),
            matches: LimitMatch::default(),
            per: per.iter().cloned().collect(),
            bound: LimitBound::Calls(10),
            every: LimitWindow::Day,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        }
    }

    fn found(counters: &[(&str, u64, i64)]) -> SeenCounters {
        let facts = |used, ends_ms| CounterFacts { used, ends_ms, held: 0 };
        let counters = counters.iter().map(|(name, used, ends_ms)| ((*name).to_owned(), facts(*used, *ends_ms)));
        SeenCounters { counters: counters.collect(), complete: true }
    }

    fn tally(counters: &LimitCounters, counter: &str, shard: Option<u32>) -> Tally {
        counters.counters[&CounterKey { counter: counter.into(), shard }].clone()
    }

    #[test]
    fn a_fleet_counter_sums_its_shares_and_ignores_ended_windows() {
        let (limit, mut counters) =
            (limit(&[LimitKey::Tool]), LimitCounters { complete: true, ..LimitCounters::default() });
        counters.add(found(&[("send", 5, 2_000), ("~", 1, 2_000)]), Some(&limit), ((0, 2), 1_000), &Policy::default());
        counters.add(
            found(&[("send", 3, 2_500), ("old", 5, 900), ("~", 2, 2_000)]),
            Some(&limit),
            ((1, 2), 1_000),
            &Policy::default(),
        );
        let send = tally(&counters, "send", None);
        assert_eq!((send.used, send.ends_ms, send.full_in), (8, Some(2_500), 1));
        assert_eq!(send.shards, [0, 1].into());
        assert_eq!(tally(&counters, "old", None), Tally { shards: [1].into(), allowed: Some(10), ..Tally::default() });
        assert_eq!(tally(&counters, "~", None).used, 3);
        assert_eq!((counters.total, counters.counters_read, counters.complete), (5, 5, true));
    }

    #[test]
    fn the_shared_overflow_counter_of_a_tenant_limit_is_per_shard() {
        let limit = limit(&[LimitKey::User]);
        let mut counters = LimitCounters::default();
        for shard in [0, 1] {
            counters.add(found(&[("~", 7, 2_000)]), Some(&limit), ((shard, 2), 1_000), &Policy::default());
            assert_eq!(tally(&counters, "~", Some(shard)).used, 7);
        }
    }
}
