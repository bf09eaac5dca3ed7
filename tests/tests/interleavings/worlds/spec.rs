//! What one interleaving is about: few tenants and agents, small caps, turns of every kind.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_model::limit::counters::Debits;
use tickfleet_model::limit::{Every, LimitBound, LimitMatch, LimitMode, OnReach};
use tickfleet_model::{Caps, DayCapAction, Limit, Priority};
use tickfleet_store::{CounterDebits, LimitRow, PolicyRow, Queue};
use tickfleet_tests::referee::limits::{Reach, Window};

/// 2026-01-05T00:00:00Z.
pub const START_MS: i64 = 1_767_571_200_000;
/// Day bounds are arguments of the scripts: short days show many midnights.
pub const DAY_MS: i64 = 20_000;
pub const LEASE_MS: i64 = 4_000;
pub const ENDING_LEASE_MS: i64 = 3_000;
/// Finished records and ids are forgotten by hand after this much of the injected time.
pub const RETAIN_MS: i64 = 15_000;
pub const TURNS_MAX: u64 = 6;
pub const TENANT_TURNS_MAX: i64 = 6;
pub const TENANT_READY_MAX: i64 = 3;
pub const INBOX_UNREAD_MAX: usize = 4;
/// Of a tenant.
pub const INBOXES_MAX: usize = 2;
pub const CRASHES_MAX: u32 = 3;
/// Turns that one release dispatches per lane.
pub const RELEASE_BOUND: usize = 3;

pub const TENANTS: [&str; 2] = ["acme", "bolt"];
pub const AGENTS: [&str; 2] = ["kelly", "lucy"];
/// This agent's budgets cannot be read.
pub const ODD_AGENT: &str = "odd";
/// What budgets that cannot be read count as.
pub const USED_UP: u32 = 1_000_000_000;
/// The key of this task's record holds something else, so that admission under it is a script error.
pub const ODD_TASK: &str = "odd-task";
pub const PRIORITIES: [Priority; 2] = [Priority::High, Priority::Normal];
/// The queues of these priorities.
pub const QUEUES: &[Queue] = &[
    Queue::Ready(Priority::High),
    Queue::Ready(Priority::Normal),
    Queue::Suspect(Priority::High),
    Queue::Suspect(Priority::Normal),
];

/// A turn as its producer means it.
#[derive(Debug, Clone)]
pub struct Spec {
    pub tenant: &'static str,
    pub agent: &'static str,
    /// The producer's id, where it gives one.
    pub given: Option<String>,
    pub digest: String,
    /// Per call, whether a side effect must not happen twice.
    pub once: Vec<bool>,
    pub deadline_ms: i64,
    pub priority: Priority,
    pub inbox: Option<&'static str>,
    pub task: Option<String>,
    /// Budget of a task; none for a turn.
    pub budget: Option<u32>,
    /// Per limit, what each call debits; none where it should say so, and does not.
    pub amounts: [Vec<Option<u64>>; LIMITS.len()],
}

/// What the limits of games are called. Those of the first belong to a tenant, those of the second to everybody.
pub const LIMITS: [&str; 2] = ["own", "shared"];

/// A limit of a game's policy.
#[derive(Debug, Clone, Copy)]
pub struct GameLimit {
    pub max: u64,
    /// None: a day.
    pub period_ms: Option<i64>,
    /// It counts what is out at the same time, and has no windows.
    pub is_held: bool,
    pub reach: Reach,
}

impl Spec {
    pub fn random(rng: &mut StdRng, number: usize, now_ms: i64, tasks: &[(&'static str, String)]) -> Self {
        let task = if tasks.is_empty() || rng.random_bool(0.7) { None } else { Some(rng.random_range(0..tasks.len())) };
        let tenant = task.map_or_else(|| TENANTS[rng.random_range(0..TENANTS.len())], |t| tasks[t].0);
        let wait = if rng.random_bool(0.35) { rng.random_range(300..15_000) } else { 200_000 };
        let once: Vec<bool> = (0..rng.random_range(1..=5)).map(|_| rng.random_bool(0.5)).collect();
        let amounts = [(); LIMITS.len()].map(|()| amounts(rng, once.len()));
        Self {
            tenant,
            agent: if rng.random_bool(0.04) { ODD_AGENT } else { AGENTS[rng.random_range(0..AGENTS.len())] },
            given: rng.random_bool(0.5).then(|| format!("g{number}")),
            digest: format!("d{number}"),
            once,
            amounts,
            deadline_ms: now_ms + wait,
            priority: PRIORITIES[rng.random_range(0..PRIORITIES.len())],
            inbox: match rng.random_range(0..20) {
                0..2 => None,
                2 => Some("rare"),
                n => Some(["box", "post"][n % 2]),
            },
            task: if rng.random_bool(0.03) { Some(ODD_TASK.to_owned()) } else { task.map(|t| tasks[t].1.clone()) },
            budget: None,
        }
    }

    pub fn random_task(rng: &mut StdRng, number: usize, now_ms: i64, tasks: &[(&'static str, String)]) -> Self {
        let mut spec = Self::random(rng, number, now_ms, tasks);
        spec.given = rng.random_bool(0.5).then(|| format!("k{number}"));
        spec.agent = AGENTS[number % AGENTS.len()];
        spec.once = vec![false];
        spec.amounts = Default::default();
        spec.task = spec.task.filter(|task| task != ODD_TASK);
        spec.budget = Some(rng.random_range(1..8));
        spec
    }

    pub fn calls(&self) -> usize {
        self.once.len()
    }

    /// How a reply begins. By this word a script knows a task, whose budget goes back to its parent.
    pub fn id_word(&self) -> &'static str {
        if self.budget.is_some() { "task_id" } else { "turn" }
    }
}

/// What the calls of a turn debit of a limit: mostly one each, of those that it counts.
fn amounts(rng: &mut StdRng, calls: usize) -> Vec<Option<u64>> {
    if rng.random_bool(0.4) {
        return vec![Some(u64::from(rng.random_bool(0.7))); calls];
    }
    let one = |rng: &mut StdRng| if rng.random_bool(0.04) { None } else { Some(rng.random_range(0..4)) };
    (0..calls).map(|_| one(rng)).collect()
}

/// What turns are judged by on one day.
#[derive(Debug, Clone)]
pub struct Rows {
    /// One row for each of [`TENANTS`].
    pub rows: [PolicyRow; TENANTS.len()],
    /// One for each of [`LIMITS`], where the policy has it.
    pub limits: [Option<GameLimit>; LIMITS.len()],
}

impl std::ops::Index<usize> for Rows {
    type Output = PolicyRow;

    fn index(&self, tenant: usize) -> &PolicyRow {
        &self.rows[tenant]
    }
}

impl Rows {
    /// Whether a limit counts anything.
    pub fn is_limited(&self) -> bool {
        self.limits.iter().any(Option::is_some)
    }

    /// The limits as the store wants them; a limit's number is its place among those that there are.
    pub fn limit_rows(&self) -> Vec<LimitRow> {
        let day_ms = (self.rows[0].day_start_ms, self.rows[0].day_end_ms);
        let row = |(name, limit): (&&str, &Option<GameLimit>)| {
            let limit = (*limit)?;
            let (on_reach, mode) = match limit.reach {
                Reach::Wait => (OnReach::Wait, LimitMode::Enforce),
                Reach::Reject => (OnReach::Reject, LimitMode::Enforce),
                Reach::Shadow => (OnReach::Wait, LimitMode::Shadow),
            };
            let limit = Limit {
                name: (*name).to_owned(),
                matches: LimitMatch::default(),
                per: BTreeSet::new(),
                bound: LimitBound::Calls(limit.max),
                every: if limit.is_held { Every::Held } else { limit.period_ms.map_or(Every::Day, Every::Period) },
                on_reach,
                mode,
                keys_max: 100,
            };
            Some(LimitRow::new(&limit, (0, 1), 1_000, day_ms))
        };
        LIMITS.iter().zip(&self.limits).filter_map(row).collect()
    }

    /// The counters that the calls of a turn debit from `next` on: the limit, the counter, and how its windows go.
    pub fn debits(&self, spec: &Spec, next: usize) -> Vec<(usize, String, Window)> {
        let day = Window::Day(self.rows[0].day_start_ms, self.rows[0].day_end_ms);
        let of = |number: usize| {
            let limit = self.limits[number]?;
            let amounts = spec.amounts[number].get(next..)?;
            amounts.iter().any(|amount| *amount != Some(0)).then_some(())?;
            let key = if number == 0 { spec.tenant } else { "" };
            let stagger_ms = |length: i64| 100 * i64::try_from(key.len()).unwrap_or(0) % length;
            let window = limit.period_ms.map_or(day, |length| Window::Period(length, stagger_ms(length)));
            let window = if limit.is_held { Window::Held } else { window };
            Some((number, key.to_owned(), window))
        };
        (0..LIMITS.len()).filter_map(of).collect()
    }

    /// The same as the store wants them.
    pub fn counters(&self, spec: &Spec, next: usize) -> Vec<CounterDebits> {
        let row = |number: usize| self.limits[..number].iter().filter(|limit| limit.is_some()).count();
        let of = |(number, key, window): (usize, String, Window)| CounterDebits {
            row: row(number),
            stagger_ms: if let Window::Period(_, stagger_ms) = window { stagger_ms } else { 0 },
            debits: Debits { limit: number, key, amounts: spec.amounts[number][next..].to_vec() },
        };
        self.debits(spec, next).into_iter().map(of).collect()
    }
}

/// The day cap that was set at run time for each of [`TENANTS`]; none where nothing was set.
pub type CapsSet = [Option<Option<u32>>; TENANTS.len()];

/// The number of a tenant among [`TENANTS`].
pub fn number_of(tenant: &str) -> usize {
    TENANTS.iter().position(|known| *known == tenant).unwrap_or(0)
}

/// One generation of the policy; it is the same for all agents.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    pub caps: Caps,
    /// How far the policy's time zone is from UTC.
    pub zone_ms: i64,
    /// One for each of [`LIMITS`].
    pub limits: [Option<GameLimit>; LIMITS.len()],
}

impl Policy {
    pub fn random(rng: &mut StdRng) -> Self {
        let caps = Caps {
            tick_ms: [1_000, 2_000, 5_000][rng.random_range(0..3)],
            calls_per_tick: rng.random_range(2..=3),
            calls_per_day: rng.random_range(3..=12),
            tenant_calls_per_day: rng.random_bool(0.3).then(|| rng.random_range(5..15)),
            on_day_cap: if rng.random_bool(0.5) { DayCapAction::Reject } else { DayCapAction::Defer },
        };
        let limits = [(); LIMITS.len()].map(|()| {
            rng.random_bool(0.4).then(|| GameLimit {
                max: rng.random_range(2..=8),
                period_ms: [Some(1_500), Some(4_000), Some(61_000), None][rng.random_range(0..4)],
                is_held: rng.random_bool(0.4),
                reach: [Reach::Wait, Reach::Wait, Reach::Reject, Reach::Shadow][rng.random_range(0..4)],
            })
        });
        Self { caps, zone_ms: [0, 7_000, -5_000][rng.random_range(0..3)], limits }
    }

    /// The rows of the day that holds `at_ms`, one for each of [`TENANTS`], under the caps that were set at run time.
    pub fn rows(&self, at_ms: i64, set: &CapsSet) -> Rows {
        let day_start_ms = at_ms - (at_ms + self.zone_ms).rem_euclid(DAY_MS);
        let rows = set.map(|cap| {
            let tenant_calls_per_day = cap.unwrap_or(self.caps.tenant_calls_per_day);
            let caps = Caps { tenant_calls_per_day, ..self.caps };
            PolicyRow { caps, day_start_ms, day_end_ms: day_start_ms + DAY_MS }
        });
        Rows { rows, limits: self.limits }
    }

    pub fn stagger_ms(&self, tenant: &str, agent: &str) -> i64 {
        let seed: i64 = tenant.bytes().chain(agent.bytes()).map(i64::from).sum();
        (seed * 137).rem_euclid(self.caps.tick_ms)
    }
}
