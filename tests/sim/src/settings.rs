//! What a game is played with: legal but odd settings, drawn from its seed.

pub(crate) mod calendar;
pub(crate) mod governed;
mod limits;
pub(crate) mod sealed;

pub(crate) use limits::counts;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_model::policy::{DefaultCaps, Permissions, TenantPolicy, ToolGrant};
use tickfleet_model::{AgentId, AgentPolicy, DayCapAction, Limit, Policy, TenantId};
use tickfleet_store::StoreOptions;

use calendar::Calendar;
use governed::Governed;
use sealed::{SEALED_FROM, Sealed};

use crate::parts::tasks::{CLERK, OUTSIDER};
use crate::trouble::STRANGERS;

/// Settings of a whole fleet.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) store: StoreOptions,
    /// When it is played.
    pub(crate) calendar: Calendar,
    pub(crate) schedulers: usize,
    pub(crate) workers: usize,
    pub(crate) slots: usize,
    pub(crate) batch: usize,
    pub(crate) tick_poll: Duration,
    pub(crate) collect_every: Duration,
    pub(crate) reap_every: Duration,
    pub(crate) tool_timeout: Duration,
    /// Silence after which a task of a runtime outside goes to another.
    pub(crate) outside_lease: Duration,
    pub(crate) drain: Duration,
    /// Waits between tries.
    pub(crate) ladder: Vec<Duration>,
    pub(crate) tenants: Vec<TenantId>,
    pub(crate) agents: Vec<AgentId>,
    /// The configurations that processes may have, one after the other.
    pub(crate) caps: Vec<DefaultCaps>,
    /// The limits of each configuration.
    pub(crate) limits: Vec<Vec<Limit>>,
    /// How calls are governed, where they are.
    pub(crate) governed: Option<Governed>,
    /// How the audit log is sealed, where it is.
    pub(crate) sealed: Option<Sealed>,
    /// Of each tenant, calls per day.
    pub(crate) tenant_day: Option<u32>,
    /// Turns that are submitted in all.
    pub(crate) turns: usize,
    /// How long they come and trouble lasts, µs.
    pub(crate) span_us: i64,
    /// Whether tasks are delegated, whatever else is drawn.
    pub(crate) has_tasks: bool,
    /// Bytes of Redis' memory; zero: no bound.
    pub(crate) maxmemory: u64,
}

/// Tools of the simulated world; the agents may call all of them but the last.
pub(crate) const TOOLS: [&str; 4] = ["look", "put", "pay", "forbidden"];

/// The tool by which agents delegate, and that the result of a task names.
pub(crate) const TASK_TOOL: &str = tickfleet_engine::delegation::TASK_TOOL;

/// Games from this seed on may have limits: the others stay what they were before there were any.
pub(crate) const LIMITED_FROM: u64 = 1_000_000;
/// In games from this seed on, calls are governed, and there are no limits.
pub(crate) const GOVERNED_FROM: u64 = 2_000_000;

/// The time that caps may hold a game's calls back, about, ms.
const LONGEST_MS: u64 = 150_000;
/// Where calls wait for the next day, as many days.
const DAYS_MAX: u64 = 4;
/// A turn has one to six calls.
const CALLS_A_TURN: u64 = 3;

pub(crate) fn one_of<T: Copy>(chance: &mut StdRng, choices: &[T]) -> T {
    choices[chance.random_range(0..choices.len())]
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Settings {
    /// Whether the game's configurations lie in several time zones.
    pub(crate) fn has_zones(&self) -> bool {
        self.caps.windows(2).any(|two| two[0].time_zone != two[1].time_zone)
    }

    /// Draws the settings of a game.
    pub(crate) fn draw(chance: &mut StdRng) -> Self {
        let shards = one_of(chance, &[1, 1, 1, 2, 3, 8]);
        let named = |kind: &str, count: usize| (0..count).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
        let tenants: Vec<TenantId> = named("tenant", if shards == 1 { chance.random_range(1..=3) } else { 4 })
            .iter()
            .filter_map(|name| TenantId::new(name).ok())
            .collect();
        let agents =
            named("agent", chance.random_range(1..=3)).iter().filter_map(|name| AgentId::new(name).ok()).collect();
        let first = caps(chance);
        let second = DefaultCaps { tick_ms: first.tick_ms, ..caps(chance) };
        Self {
            store: store(chance, shards),
            calendar: Calendar::default(),
            schedulers: chance.random_range(1..=3),
            workers: chance.random_range(1..=4),
            slots: one_of(chance, &[1, 2, 4, 16]),
            batch: one_of(chance, &[1, 4, 64, 256]),
            tick_poll: millis(one_of(chance, &[1, 10, 50, 200])),
            collect_every: millis(one_of(chance, &[100, 1_000, 5_000])),
            reap_every: millis(500),
            tool_timeout: millis(one_of(chance, &[500, 2_000, 8_000])),
            outside_lease: millis(2_000),
            drain: millis(one_of(chance, &[0, 1_000, 10_000])),
            ladder: one_of(chance, &[&[100, 300, 900][..], &[1_000, 3_000, 9_000], &[1]])
                .iter()
                .map(|ms| millis(*ms))
                .collect(),
            tenants,
            agents,
            caps: vec![first, second],
            limits: Vec::new(),
            governed: None,
            sealed: None,
            tenant_day: one_of(chance, &[None, None, Some(40), Some(5)]),
            turns: chance.random_range(10..120),
            span_us: chance.random_range(10..40) * 1_000_000,
            has_tasks: false,
            maxmemory: one_of(chance, &[0, 0, 0, 2_000_000]),
        }
    }

    /// Bounds that are reached, and a second configuration that differs in what windows are made of. Drawn by a
    /// generator of its own, after all else.
    pub(crate) fn sharpened(mut self, chance: &mut StdRng) -> Self {
        let store = &mut self.store;
        match chance.random_range(0..12) {
            0 => store.tenant_turns_max = 4,
            1 => store.tenant_ready_max = 1,
            2 | 3 => store.turns_max = 3,
            4 => store.inbox_unread_max = 3,
            _ => {}
        }
        // More than our own tenants use, and fewer than strangers do.
        store.inboxes_max = one_of(chance, &[1_000, 9, 8]);
        // Each scheduler looks at each shard so often: that is most of what a game of many takes, and shows no more.
        let lookers = u64::from(self.store.shards) * self.schedulers as u64;
        if lookers > 4 {
            self.tick_poll = self.tick_poll.max(millis(5 * lookers));
            self.collect_every = self.collect_every.max(millis(60 * lookers));
        }
        match chance.random_range(0..6) {
            0 => self.caps[1].tick_ms = one_of(chance, &[700, 1_500, 4_000]),
            1 => self.caps[1].time_zone = one_of(chance, &["Pacific/Kiritimati", "Asia/Tokyo"]).into(),
            _ => {}
        }
        // As rarely as the configuration may say.
        if chance.random_bool(0.25) {
            self.reap_every = millis(self.store.lease_ms.unsigned_abs());
        }
        self
    }

    /// With limits, in some games. Drawn by a generator of its own.
    pub(crate) fn limited(mut self, seed: u64, chance: &mut StdRng) -> Self {
        if (LIMITED_FROM..GOVERNED_FROM).contains(&seed) {
            self.limits = limits::draw(self.store.shards, chance);
        }
        self
    }

    /// With calls that are governed, from a seed on. Drawn by a generator of its own.
    pub(crate) fn governed(mut self, seed: u64, chance: &mut StdRng) -> Self {
        if seed >= GOVERNED_FROM {
            self.governed = Some(Governed::draw(chance));
            // Small games show as much of it, and cost a quarter.
            let store = &mut self.store;
            (store.shards, store.lease_ms) = (1, store.lease_ms.min(3_000));
            store.ending_lease_ms = store.lease_ms;
            (self.schedulers, self.workers) = (self.schedulers.min(2), self.workers.min(2));
            self.tenants.truncate(2);
            self.agents.truncate(2);
            (self.turns, self.span_us) = (self.turns.min(40), self.span_us.min(12_000_000));
            (self.tick_poll, self.collect_every) =
                (self.tick_poll.max(millis(10)), self.collect_every.max(millis(1_000)));
            for caps in &mut self.caps {
                (caps.tick_ms, caps.calls_per_tick) = (1_000, caps.calls_per_tick.max(3));
                caps.max_actions_per_day = 1_000;
            }
            self.tenant_day = None;
        }
        self
    }

    /// With a log that is sealed, from a seed on. Drawn by a generator of its own.
    pub(crate) fn sealed(mut self, seed: u64, chance: &mut StdRng) -> Self {
        if seed >= SEALED_FROM {
            let sealed = Sealed::draw(chance);
            self.limits = limits::draw(self.store.shards, chance);
            // In a quarter of them, without a draw: those of the others stay what they are.
            if seed % 4 == 3 {
                self.limits.iter_mut().for_each(|limits| limits.push(limits::shade()));
            }
            self.turns = self.turns.min(30);
            self.store.audit_admissions = true;
            if chance.random_bool(0.5) {
                // Two, one of which may stand still for longer than a sealer's lease.
                (self.schedulers, self.span_us) = (2, 20_000_000);
            }
            self.sealed = Some(sealed);
        }
        self
    }

    /// Where all configurations are to have one policy, the first one's. When all else has been drawn.
    pub(crate) fn united(mut self) -> Self {
        if self.sealed.as_ref().is_some_and(|sealed| sealed.is_one_policy) {
            self.caps = vec![self.caps[0].clone(); self.caps.len()];
            self.limits = vec![self.limits[0].clone(); self.limits.len()];
            self.governed = self.governed.map(Governed::united);
        }
        self
    }

    /// As many turns as their caps let through in some minutes: a longer game shows no more.
    pub(crate) fn shortened(mut self) -> Self {
        let each_ms = |caps: &DefaultCaps| caps.tick_ms.unsigned_abs() / u64::from(caps.calls_per_tick.max(1));
        let slowest_ms = self.caps.iter().map(each_ms).max().unwrap_or(1).max(1);
        let mut calls = LONGEST_MS / slowest_ms * (self.tenants.len() * self.agents.len()) as u64;
        if self.calendar.on_day_cap == DayCapAction::Defer {
            let a_day = self.caps.iter().map(|caps| caps.max_actions_per_day).chain(self.tenant_day).min().unwrap_or(1);
            calls = calls.min(u64::from(a_day) * DAYS_MAX * self.tenants.len() as u64);
        }
        self.turns = self.turns.min(usize::try_from(calls / CALLS_A_TURN).unwrap_or(usize::MAX).max(10));
        self
    }

    /// The policy of a configuration.
    pub(crate) fn policy(&self, version: usize) -> Policy {
        let every = ToolGrant { everyone: true, ..ToolGrant::default() };
        let strangers = STRANGERS.iter().filter_map(|name| TenantId::new(name).ok());
        let granted = TOOLS.iter().filter(|name| **name != "forbidden").chain([&TASK_TOOL]);
        let task_agents = [CLERK, OUTSIDER].into_iter().filter_map(|name| AgentId::new(name).ok());
        let agents = self.agents.iter().cloned().chain(task_agents);
        let tenant = TenantPolicy { max_actions_per_day: self.tenant_day, ..TenantPolicy::default() };
        let policy = Policy {
            agents: Arc::new(agents.map(|agent| (agent, AgentPolicy::default())).collect()),
            tenants: self.tenants.iter().cloned().chain(strangers).map(|name| (name, tenant.clone())).collect(),
            withheld: BTreeSet::new(),
            permissions: Permissions {
                matrix: granted.map(|name| ((*name).to_owned(), every.clone())).collect(),
                disabled_tools: BTreeSet::new(),
                switched_off: BTreeSet::new(),
                strict_capabilities: true,
                approvers: BTreeMap::new(),
            },
            defaults: DefaultCaps {
                on_day_cap: self.calendar.on_day_cap,
                ..self.caps[version % self.caps.len()].clone()
            },
            limits: Arc::new(self.limits.get(version % self.caps.len()).cloned().unwrap_or_default()),
            ..Policy::default()
        };
        match &self.governed {
            Some(governed) => governed.over(policy, version, self.sealed.is_some()),
            None => policy,
        }
    }
}

fn caps(chance: &mut StdRng) -> DefaultCaps {
    DefaultCaps {
        tick_ms: one_of(chance, &[500, 1_000, 5_000]),
        calls_per_tick: one_of(chance, &[1, 3, 10]),
        max_actions_per_day: one_of(chance, &[7, 60, 1_000, 1_000, 1_000]),
        ..DefaultCaps::default()
    }
}

fn store(chance: &mut StdRng, shards: u32) -> StoreOptions {
    let lease_ms = one_of(chance, &[1_000, 3_000, 10_000]);
    StoreOptions {
        namespace: "sim".into(),
        shards,
        lease_ms,
        ending_lease_ms: lease_ms,
        turns_max: one_of(chance, &[20, 1_000]),
        tenant_turns_max: one_of(chance, &[30, 1_000]),
        tenant_ready_max: one_of(chance, &[3, 1_000]),
        crashes_max: one_of(chance, &[2, 3, 5]),
        ..StoreOptions::default()
    }
}
