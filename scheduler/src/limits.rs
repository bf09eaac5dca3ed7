//! Which counters of limits the calls of a turn debit, as scripts want them.

use tickfleet_model::limit::counters::{Debits, Maker, counters};
use tickfleet_model::policy::Unknown;
use tickfleet_model::{AgentId, Call, Limit, Policy, TenantId};
use tickfleet_store::{CounterDebits, Head, JudgedBy, LanePolicy, LimitRow, SliceMeta, Store, TurnName, WaitingTurn};

use crate::policy::{PolicyClock, Rows, counter_stagger_ms, stagger_ms};

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

    /// The counters that these calls of `maker` debit, with rows for their limits.
    pub(crate) fn counters(&self, maker: &Maker<'_>, calls: &[Call], rows: &mut Rows) -> Vec<CounterDebits> {
        let policy = self.policy;
        if policy.limits.is_empty() {
            return Vec::new();
        }
        let found = counters(&policy.limits, &policy.tool_traits, maker, calls);
        found.into_iter().map(|debits| self.counter(maker, debits, rows)).collect()
    }

    fn counter(&self, maker: &Maker<'_>, debits: Debits, rows: &mut Rows) -> CounterDebits {
        let limit = &self.policy.limits[debits.limit];
        let tick_ms = self.policy.defaults.tick_ms;
        let day_ms = self.clock.day(self.zone(limit, maker), self.now_ms);
        let row = rows.limit_number(debits.limit, day_ms.0, || LimitRow::new(limit, self.shard, tick_ms, day_ms));
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
            Ok((t, a)) => LanePolicy::Row(rows.number(self.clock.row(self.policy, t, a, self.now_ms))),
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
                let (context, task) = meta.map(|meta| (meta.context, meta.task)).unwrap_or_default();
                let task = task.map(|(task, _)| task);
                let (tenant, context, task) = (&name.tenant, &context, task.as_ref());
                let calls: Vec<Call> = head.calls.iter().map(|blob| call_of(blob)).collect();
                self.counters(&Maker { tenant, owner, agent: &agent, policy, context, task }, &calls, rows)
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
