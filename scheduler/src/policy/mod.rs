mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use slots::WorkerSlots;
use tickfleet_core::CounterKey;
use tickfleet_core::keys::TurnName;
use tickfleet_core::turn::limit::Generations;
use tickfleet_engine::active_policy::{ActivePolicy, short_digest};
use tickfleet_engine::report::{Renderer, ReportOptions};
use tickfleet_engine::rules::ActiveRules;
use tickfleet_model::limit::LimitBound;
use tickfleet_model::{Limit, Policy, TenantId};
use tickfleet_ops::metrics::Metrics;

#[derive(Debug)]
pub struct PolicyState {
    announced: ArcSwap<AnnouncedPolicy>,
    /// The start of the last known restart epoch of the store, or [`UNKNOWN_MS`].
    epoch_ms: AtomicI64,
    slots: Arc<WorkerSlots>,
}

/// The epoch is unknown. This value is later than any epoch, so that a new scheduler does not report an old restart.
const UNKNOWN_MS: i64 = i64::MAX;

impl Default for PolicyState {
    fn default() -> Self {
        Self { announced: ArcSwap::default(), epoch_ms: AtomicI64::new(UNKNOWN_MS), slots: Arc::default() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct AnnouncedPolicy {
    pub(crate) digest: String,
    pub(crate) short: Arc<str>,
    pub(crate) generation: u64,
}

pub(crate) struct PolicySnapshot {
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) generations: Generations,
    pub(crate) shard: (u32, u32),
    pub(crate) slots: ShardSlots,
    pub(crate) report: ReportOptions,
}

impl PolicySnapshot {
    pub(crate) fn rules(&self) -> ActiveRules<'_> {
        let active = Arc::clone(&self.active);
        let generations = self.generations;
        let shard = self.shard;
        ActiveRules { active, generations, shard, slots: &self.slots }
    }

    pub(crate) fn renderer(&self) -> Renderer<'_> {
        Renderer { options: &self.report, policy: &self.active.policy }
    }
}

pub(crate) struct ShardSlots {
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) slots: Arc<WorkerSlots>,
    pub(crate) shards: u32,
    pub(crate) now_ms: i64,
}

impl tickfleet_engine::rules::SlotBounds for ShardSlots {
    fn counts(&self, limit: &Limit) -> bool {
        !matches!(limit.bound, LimitBound::Share(_))
            || !is_share_unneeded(&self.active.policy, limit) && self.slots.has_shortage(&limit.name, self.now_ms)
    }

    fn max_of(&self, limit: &Limit, tenant: &TenantId) -> Option<u64> {
        self.slots.max_permits(limit, tenant, self.shards, self.now_ms)
    }
}

impl ShardSlots {
    pub(crate) fn count_arrival(&self) {
        if has_slot_limits(&self.active.policy) {
            self.slots.count_arrival();
        }
    }

    /// The tenant counts as waiting for a share, if `counter` belongs to a limit on a share of the slots.
    pub(crate) fn record_waiting(&self, counter: &CounterKey, turn: &TurnName) {
        let policy = &self.active.policy;
        let is_share = |limit: &&Limit| *limit.name == *counter.limit && matches!(limit.bound, LimitBound::Share(_));
        let found = policy.limits.iter().find(is_share).zip(policy.tenants.get(&turn.tenant));
        if let Some((limit, owner)) = found {
            self.slots.record_waiting(&limit.name, &turn.tenant, owner.limit(limit).bound.max(), self.now_ms);
        }
    }
}

/// A smaller jump may be caused by a slow response.
const LARGE_JUMP_MS: i64 = 60_000;

impl PolicyState {
    pub(crate) const fn slots(&self) -> &Arc<WorkerSlots> {
        &self.slots
    }

    /// 0 before the first announcement.
    pub fn generation(&self) -> u64 {
        self.announced.load().generation
    }

    pub(crate) fn announced(&self) -> Arc<AnnouncedPolicy> {
        self.announced.load_full()
    }

    pub(crate) fn set_announced(&self, digest: &str, generation: u64) {
        let short = short_digest(digest).into();
        self.announced.store(Arc::new(AnnouncedPolicy { digest: digest.to_owned(), short, generation }));
    }

    /// Does not correct shard time: a wrong clock looks the same as a pause of this process (ADR 27).
    pub(crate) fn report_clock_jump(&self, ahead_ms: i64, metrics: &Metrics) {
        if ahead_ms >= LARGE_JUMP_MS {
            metrics.clock_jumped();
            tracing::error!(
                ahead_ms,
                "Redis clock jumped ahead, or this process paused; windows of caps and limits may have opened early"
            );
        }
    }

    pub(crate) fn set_epoch(&self, epoch_ms: i64, metrics: &Metrics) {
        let known = self.epoch_ms.swap(epoch_ms, Ordering::Relaxed);
        if epoch_ms > known {
            metrics.epoch_changed();
            tracing::warn!(
                epoch_ms,
                "Redis restarted and may have lost its last writes; ticks and short windows that began before admit no more calls"
            );
        }
    }
}

pub(crate) fn has_slot_limits(policy: &Policy) -> bool {
    policy.limits.iter().any(|limit| limit.bound.is_of_slots() && !is_share_unneeded(policy, limit))
}

/// A single tenant may use all slots.
fn is_share_unneeded(policy: &Policy, limit: &Limit) -> bool {
    matches!(limit.bound, LimitBound::Share(_)) && policy.tenants.len() < 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_engine::rules::SlotBounds as _;
    use tickfleet_model::limit::{LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
    use tickfleet_model::policy::TenantPolicy;
    use tickfleet_store::FleetLoad;

    use super::*;

    #[test]
    fn a_fair_share_limit_applies_only_with_several_tenants() {
        let share = Limit {
            name: "fair_share".into(),
            matches: LimitMatch::default(),
            per: [LimitKey::Tenant].into(),
            bound: LimitBound::Share(1),
            every: LimitWindow::Concurrency,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        };
        let clock = PolicyState::default();
        clock.slots.set_load(&FleetLoad { slots: 4, in_flight: 500, read: None, now_ms: 1_000 });
        let mut policy = Policy { limits: Arc::new(vec![share.clone()]), ..Policy::default() };
        let counts = |policy: &Policy| {
            let active = Arc::new(ActivePolicy { policy: policy.clone(), ..ActivePolicy::default() });
            let slots = ShardSlots { active, slots: Arc::clone(clock.slots()), shards: 1, now_ms: 1_000 };
            (has_slot_limits(policy), policy.limits.iter().any(|limit| slots.counts(limit)))
        };
        for (tenant, counted) in [("acme", (false, false)), ("globex", (true, true))] {
            policy.tenants.insert(TenantId::new(tenant).unwrap(), TenantPolicy::default());
            assert_eq!(counts(&policy), counted, "500 slices are out for 4 slots");
        }
        // Unlike a share, a limit on a part of the slots also applies to a single tenant.
        let part = Limit { bound: LimitBound::Part(25), ..share };
        policy.tenants.pop_first();
        policy.limits = Arc::new(vec![part]);
        assert_eq!(counts(&policy), (true, true));
    }

    #[test]
    fn a_redis_restart_before_the_scheduler_started_is_not_counted() {
        let clock = PolicyState::default();
        let metrics = Metrics::new().unwrap();
        let counts = |restarts: u64| {
            let text = metrics.render();
            let line = format!("tickfleet_epoch_changes_total {restarts}");
            assert!(text.lines().any(|found| found == line), "no {line} in:\n{text}");
        };
        // A restart before the first known epoch is not reported.
        clock.set_epoch(5_000, &metrics);
        counts(0);
        clock.set_epoch(9_000, &metrics);
        counts(1);
        // Differences from late responses are not reported as jumps.
        for ahead_ms in [-86_400_000, 0, 59_999] {
            clock.report_clock_jump(ahead_ms, &metrics);
        }
        assert!(metrics.render().contains("tickfleet_clock_jumps_total 0"));
        clock.report_clock_jump(86_400_000, &metrics);
        assert!(metrics.render().contains("tickfleet_clock_jumps_total 1"));
    }

    #[test]
    fn the_first_redis_restart_counts_as_an_epoch_change() {
        let clock = PolicyState::default();
        let metrics = Metrics::new().unwrap();
        clock.set_epoch(0, &metrics);
        clock.set_epoch(7_000, &metrics);
        assert!(metrics.render().contains("tickfleet_epoch_changes_total 1"));
    }
}
