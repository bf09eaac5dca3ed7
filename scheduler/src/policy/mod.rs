//! The policy's generation, its calendar days and its limits, as the scripts want them.

mod slots;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use slots::Slots;

use arc_swap::ArcSwap;
use tickfleet_engine::active_policy::{ActivePolicy, short_digest};
pub use tickfleet_engine::time::counter_stagger_ms;
use tickfleet_model::day;
use tickfleet_model::limit::LimitBound;
use tickfleet_model::limit::counters::{Debits, Maker, counters};
use tickfleet_model::policy::Unknown;
use tickfleet_model::{AgentId, AgentPolicy, Call, Limit, Policy, TenantId, policy::TenantPolicy};
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::{
    CounterDebits, Generations, Head, JudgedBy, Lane, LanePolicy, LimitRow, PolicyRow, SliceMeta, Store, TurnName,
    WaitingTurn,
};

/// The policy that we announced, and the day that each time zone has.
#[derive(Debug)]
pub struct PolicyClock {
    announced: ArcSwap<AnnouncedPolicy>,
    days: Mutex<HashMap<String, (i64, i64)>>,
    /// Steps of Redis' clock that are known of, or [`NOT_HEARD_STEPS`].
    steps: AtomicU64,
    /// When the epoch that is known of began, or [`NOT_HEARD_MS`].
    epoch_ms: AtomicI64,
    slots: Slots,
}

/// Nothing from before we first heard of it is news: a scheduler that starts must not report an old restart.
const NOT_HEARD_STEPS: u64 = u64::MAX;
const NOT_HEARD_MS: i64 = i64::MAX;

impl Default for PolicyClock {
    fn default() -> Self {
        Self {
            announced: ArcSwap::default(),
            days: Mutex::default(),
            steps: AtomicU64::new(NOT_HEARD_STEPS),
            epoch_ms: AtomicI64::new(NOT_HEARD_MS),
            slots: Slots::default(),
        }
    }
}

/// A policy that Redis took for the one in force.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedPolicy {
    pub(crate) digest: String,
    pub(crate) short: Arc<str>,
    pub(crate) generation: u64,
}

/// The premises of a batch: a policy with what was set at run time, and the generations that Redis knows them under.
pub(crate) struct Deciding {
    pub(crate) active: Arc<ActivePolicy>,
    pub(crate) generations: Generations,
}

/// A step of Redis' clock that operators should hear of, ms.
const LARGE_STEP_MS: i64 = 1_000;
/// A jump ahead of it that operators should hear of, ms: an answer may have been long on its way.
const LARGE_JUMP_MS: i64 = 60_000;

impl PolicyClock {
    /// The slots of the workers, and who waits for a share of them.
    pub(crate) const fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The generation of the policy that we announced last; 0 before.
    pub fn generation(&self) -> u64 {
        self.announced.load().generation
    }

    /// The policy that we announced last.
    pub(crate) fn announced(&self) -> Arc<AnnouncedPolicy> {
        self.announced.load_full()
    }

    pub(crate) fn set_announced(&self, digest: &str, generation: u64) {
        let short = short_digest(digest).into();
        self.announced.store(Arc::new(AnnouncedPolicy { digest: digest.to_owned(), short, generation }));
    }

    /// Caps of an agent by its name, with the day that `now_ms` lies in. One that is paused may call nothing in any tick:
    /// what waits stays on its lane, with its deadline.
    pub(crate) fn row_of(
        &self,
        policy: &Policy,
        (tenant, owner): (&TenantId, &TenantPolicy),
        (agent, declared): (&AgentId, &AgentPolicy),
        now_ms: i64,
    ) -> PolicyRow {
        let mut row = self.row(policy, owner, declared, now_ms);
        if policy.pause(tenant, agent).is_some() {
            row.caps.calls_per_tick = 0;
        }
        row
    }

    /// Caps of an agent with the day that `now_ms` lies in.
    pub fn row(&self, policy: &Policy, tenant: &TenantPolicy, agent: &AgentPolicy, now_ms: i64) -> PolicyRow {
        let (day_start_ms, day_end_ms) = self.day(policy.time_zone(tenant), now_ms);
        PolicyRow { caps: policy.caps(tenant, agent), day_start_ms, day_end_ms }
    }

    /// The calendar day of a zone, kept until it is over.
    pub(crate) fn day(&self, zone: &str, now_ms: i64) -> (i64, i64) {
        let mut days = self.days.lock();
        if let Some(known) = days.get(zone).filter(|(start, end)| (*start..*end).contains(&now_ms)) {
            return *known;
        }
        // Configuration has checked the zone; a tenant that was set at run time may still name an unknown one.
        let tz = day::zone(zone).unwrap_or_else(|error| {
            tracing::warn!(%error, "unknown time zone; counting its days in UTC");
            chrono_tz::UTC
        });
        let bounds = day::day_bounds(now_ms, tz);
        days.insert(zone.to_owned(), bounds);
        bounds
    }

    pub(crate) fn saw_steps(&self, (steps, step_ms): (u64, i64), metrics: &Metrics) {
        let known = self.steps.swap(steps, Ordering::Relaxed);
        if steps > known && step_ms >= LARGE_STEP_MS {
            metrics.clock_stepped();
            tracing::error!(step_ms, "Redis clock stepped back; shard time continues ahead of it");
        }
    }

    /// Redis has one clock, and a script cannot tell a wrong one from a pause: what it says is followed (ADR 27).
    pub(crate) fn saw_jump(&self, ahead_ms: i64, metrics: &Metrics) {
        if ahead_ms >= LARGE_JUMP_MS {
            metrics.clock_jumped();
            tracing::error!(
                ahead_ms,
                "Redis clock jumped ahead, or this process paused; windows of caps and limits may have opened early"
            );
        }
    }

    pub(crate) fn saw_epoch(&self, epoch_ms: i64, metrics: &Metrics) {
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

/// The offset of an agent's windows in the tick, ms: a stable hash, so that a million agents do not wake in one
/// instant.
#[must_use]
pub fn stagger_ms(tenant: &TenantId, agent: &AgentId, tick_ms: i64) -> i64 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(tenant.as_str().as_bytes());
    hash.update(b":");
    hash.update(agent.as_str().as_bytes());
    i64::from(hash.finalize()) % tick_ms.max(1)
}

/// The policies of one batch, each once.
#[derive(Debug, Default)]
pub struct Rows {
    /// The rows, in the order of their numbers.
    pub rows: Vec<PolicyRow>,
    numbers: HashMap<PolicyRow, usize>,
    /// The rows of limits, in the order of their numbers.
    pub limits: Vec<LimitRow>,
    /// By the number of the limit, the day's start, and what a counter allows.
    limit_numbers: HashMap<(usize, i64, u64), usize>,
}

impl Rows {
    /// The number of a row, added where it is new.
    pub fn number(&mut self, row: PolicyRow) -> usize {
        *self.numbers.entry(row).or_insert_with(|| {
            self.rows.push(row);
            self.rows.len() - 1
        })
    }

    /// The number of a limit's row, added where it is new: the limit, the day's start, and what a counter allows.
    pub(crate) fn limit_number(&mut self, of: (usize, i64, u64), row: impl FnOnce() -> LimitRow) -> usize {
        *self.limit_numbers.entry(of).or_insert_with(|| {
            self.limits.push(row());
            self.limits.len() - 1
        })
    }
}

/// Returns true if what limits allow follows from the workers' slots, and has to be known.
pub(crate) fn goes_by_slots(policy: &Policy) -> bool {
    policy.limits.iter().any(|limit| limit.bound.is_of_slots() && !is_for_nobody(policy, limit))
}

/// Returns true for a share of the slots where one tenant alone could have one.
fn is_for_nobody(policy: &Policy, limit: &Limit) -> bool {
    matches!(limit.bound, LimitBound::Share(_)) && policy.tenants.len() < 2
}

/// What the limits of a shard are reckoned by.
pub(crate) struct Reckoning<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) clock: &'a PolicyClock,
    /// The shard, and how many there are.
    pub(crate) shard: (u32, u32),
    pub(crate) now_ms: i64,
}

impl<'a> Reckoning<'a> {
    pub(crate) fn new(policy: &'a Policy, clock: &'a PolicyClock, store: &Store, now_ms: i64) -> Self {
        Self { policy, clock, shard: (store.shard(), store.options().shards), now_ms }
    }

    /// Turns wait on a lane: where that is of a share of the slots, their tenant has no more than its share from now on. One that
    /// only comes back for a place waits for no slot: it may find that nobody counts them any more.
    pub(crate) fn saw_waiting(&self, lane: &Lane, heads: &[Head]) {
        let waiting = heads.iter().find(|head| !head.comes_back);
        let (Lane::Counter { limit, .. }, Some(head)) = (lane, waiting) else { return };
        let of_slots = |known: &&Limit| known.name == *limit && matches!(known.bound, LimitBound::Share(_));
        let known = self.policy.limits.iter().find(of_slots).zip(TurnName::parse(&head.name));
        let Some((known, name)) = known else { return };
        let Some(owner) = self.policy.tenants.get(&name.tenant) else { return };
        self.clock.slots.waits(limit, &name.tenant, owner.limit(known).bound.max(), self.now_ms);
    }

    /// Returns true for a share of the slots that keeps nobody from anybody now: it is not counted, and costs Redis nothing.
    /// What is out then is counted by nobody later either; it is little, or slots would be short.
    fn is_asleep(&self, limit: &Limit) -> bool {
        matches!(limit.bound, LimitBound::Share(_))
            && (is_for_nobody(self.policy, limit) || !self.clock.slots.are_short(&limit.name, self.now_ms))
    }

    /// Returns true if no limit counts anything now.
    pub(crate) fn counts_nothing(&self) -> bool {
        self.policy.limits.iter().all(|limit| self.is_asleep(limit))
    }

    /// A turn has come that may go out at once.
    pub(crate) fn takes(&self) {
        if goes_by_slots(self.policy) {
            self.clock.slots.takes();
        }
    }

    /// The counters that these calls of `maker` debit, with rows for their limits.
    pub(crate) fn counters(&self, maker: &Maker<'_>, calls: &[Call], rows: &mut Rows) -> Vec<CounterDebits> {
        let policy = self.policy;
        let asleep: Vec<bool> = policy.limits.iter().map(|limit| self.is_asleep(limit)).collect();
        if asleep.iter().all(|asleep| *asleep) {
            return Vec::new();
        }
        let found = counters(&policy.limits, &policy.known_tools, maker, calls);
        found
            .into_iter()
            .filter(|debits| !asleep[debits.limit])
            .map(|debits| self.counter(maker, debits, rows))
            .collect()
    }

    fn counter(&self, maker: &Maker<'_>, debits: Debits, rows: &mut Rows) -> CounterDebits {
        let limit = maker.owner.limit(&self.policy.limits[debits.limit]);
        let tick_ms = self.policy.defaults.tick_ms;
        let day_ms = self.clock.day(self.zone(&limit, maker), self.now_ms);
        // How many slots there are, a moment may change; so that is no part of the configuration.
        let places = self.clock.slots.places(&limit, maker.tenant, self.shard.1, self.now_ms);
        let of = (debits.limit, day_ms.0, places.unwrap_or_else(|| limit.bound.max()));
        let row = rows.limit_number(of, || {
            let row = LimitRow::new(&limit, self.shard, tick_ms, day_ms);
            match places {
                Some(places) if matches!(limit.bound, LimitBound::Part(_)) => {
                    row.with_max(places).part_of(self.clock.slots.count())
                }
                Some(places) => row.with_max(places),
                None => row,
            }
        });
        let period_ms = limit.period_ms(tick_ms).unwrap_or(1);
        CounterDebits { row, stagger_ms: counter_stagger_ms(&limit.name, &debits.key, period_ms), debits }
    }

    /// The time zone of the days that a limit counts.
    fn zone<'z>(&'z self, limit: &Limit, maker: &Maker<'z>) -> &'z str {
        if limit.is_of_tenants() { self.policy.time_zone(maker.owner) } else { &self.policy.defaults.time_zone }
    }

    /// What decides about the turns of an agent.
    pub(crate) fn judge(&self, tenant: &TenantId, agent: &AgentId, rows: &mut Rows) -> JudgedBy {
        let policy = match self.policy.look_up(tenant, agent) {
            Ok((t, a)) => {
                LanePolicy::Row(rows.number(self.clock.row_of(self.policy, (tenant, t), (agent, a), self.now_ms)))
            }
            Err(Unknown::Tenant | Unknown::Agent) => LanePolicy::NoAgent,
            Err(Unknown::Withheld) => LanePolicy::Withheld,
        };
        let stagger_ms = stagger_ms(tenant, agent, self.policy.defaults.tick_ms);
        JudgedBy { agent: agent.to_string(), policy, stagger_ms }
    }

    /// The turns at the head of a lane, with what decides about them.
    pub(crate) fn waiting(&self, heads: Vec<Head>, rows: &mut Rows) -> Vec<WaitingTurn> {
        heads.into_iter().map(|head| self.waiting_turn(head, rows)).collect()
    }

    fn waiting_turn(&self, head: Head, rows: &mut Rows) -> WaitingTurn {
        let names = TurnName::parse(&head.name).zip(AgentId::new(&head.agent).ok());
        let Some((name, agent)) = names else {
            // Its record is gone, or is none: the script finds that out, and takes it from the lane.
            let by = JudgedBy { agent: head.agent, policy: LanePolicy::NoAgent, stagger_ms: 0 };
            return WaitingTurn { name: head.name, next: head.next, by, counters: Vec::new() };
        };
        let by = self.judge(&name.tenant, &agent, rows);
        let counters = match self.policy.look_up(&name.tenant, &agent) {
            Ok((owner, policy)) => {
                // What cannot be read of it says no user, no session and no task.
                let meta = serde_json::from_str::<SliceMeta>(&head.meta).ok();
                let (context, task, parallel_reads) =
                    meta.map_or_else(Default::default, |meta| (meta.context, meta.task, meta.parallel_reads));
                let task = task.map(|(task, _)| task);
                let (tenant, context, task) = (&name.tenant, &context, task.as_ref());
                let calls: Vec<Call> = head.calls.iter().map(|blob| call_of(blob)).collect();
                let maker = Maker { tenant, owner, agent: &agent, policy, context, task, parallel_reads };
                self.counters(&maker, &calls, rows)
            }
            Err(_) => Vec::new(),
        };
        WaitingTurn { name: head.name, next: head.next, by, counters }
    }
}

/// A call from its blob. One that cannot be read is a call of no tool: it counts all the same.
fn call_of(blob: &str) -> Call {
    let unread = || Call { provider_id: None, tool: String::new(), arguments: String::new() };
    serde_json::from_str(blob).unwrap_or_else(|_| unread())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_model::limit::{Every, LimitKey, LimitMatch, LimitMode, OnReach};
    use tickfleet_store::FleetLoad;

    use super::*;

    #[test]
    fn one_tenant_shares_the_slots_with_nobody() {
        let share = Limit {
            name: "fair_share".into(),
            matches: LimitMatch::default(),
            per: [LimitKey::Tenant].into(),
            bound: LimitBound::Share(1),
            every: Every::Held,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        };
        let clock = PolicyClock::default();
        clock.slots.counted(&FleetLoad { slots: 4, out: 500, read: None, now_ms: 1_000 });
        let mut policy = Policy { limits: Arc::new(vec![share.clone()]), ..Policy::default() };
        let counts = |policy: &Policy| {
            let by = Reckoning { policy, clock: &clock, shard: (0, 1), now_ms: 1_000 };
            (goes_by_slots(policy), !by.counts_nothing())
        };
        for (tenant, counted) in [("acme", (false, false)), ("globex", (true, true))] {
            policy.tenants.insert(TenantId::new(tenant).unwrap(), TenantPolicy::default());
            assert_eq!(counts(&policy), counted, "500 slices are out for 4 slots");
        }
        // A part of the slots is there to be had by one tenant alone.
        let part = Limit { bound: LimitBound::Part(25), ..share };
        policy.tenants.pop_first();
        policy.limits = Arc::new(vec![part]);
        assert_eq!(counts(&policy), (true, true));
    }

    #[test]
    fn what_happened_before_a_scheduler_started_is_no_news_to_it() {
        let (clock, metrics) = (PolicyClock::default(), Metrics::new().unwrap());
        let counts = |restarts: u64, steps: u64| {
            let text = metrics.render();
            let lines =
                [format!("tickfleet_epoch_changes_total {restarts}"), format!("tickfleet_clock_steps_total {steps}")];
            for line in lines {
                assert!(text.lines().any(|found| found == line), "no {line} in:\n{text}");
            }
        };
        // Redis was restarted and its clock stepped long ago.
        clock.saw_epoch(5_000, &metrics);
        clock.saw_steps((2, 60_000), &metrics);
        counts(0, 0);
        clock.saw_epoch(5_000, &metrics);
        clock.saw_steps((2, 60_000), &metrics);
        counts(0, 0);
        clock.saw_epoch(9_000, &metrics);
        clock.saw_steps((3, 60_000), &metrics);
        counts(1, 1);
        // A small step is not worth a signal.
        clock.saw_steps((4, 20), &metrics);
        counts(1, 1);
        // Nor is an answer that was late.
        for ahead_ms in [-86_400_000, 0, 59_999] {
            clock.saw_jump(ahead_ms, &metrics);
        }
        assert!(metrics.render().contains("tickfleet_clock_jumps_total 0"));
        clock.saw_jump(86_400_000, &metrics);
        assert!(metrics.render().contains("tickfleet_clock_jumps_total 1"));
    }

    #[test]
    fn the_first_restart_in_a_redis_life_is_news() {
        let (clock, metrics) = (PolicyClock::default(), Metrics::new().unwrap());
        clock.saw_epoch(0, &metrics);
        clock.saw_epoch(7_000, &metrics);
        assert!(metrics.render().contains("tickfleet_epoch_changes_total 1"));
    }
}
