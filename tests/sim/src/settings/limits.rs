//! Limits of a game's configurations, and how much of them the fleet may use at most.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;
use scheduler::policy::counter_stagger_ms;
use tickfleet_model::limit::{Every, LimitBound, LimitKey, LimitMatch, LimitMode, OnReach};
use tickfleet_model::{AgentId, Limit, TenantId};

use super::{Settings, TOOLS, one_of};

/// Draws the limits of two configurations; in most games there are none. The second may allow more or less, or have none.
pub(super) fn draw(shards: u32, chance: &mut StdRng) -> Vec<Vec<Limit>> {
    if chance.random_bool(0.7) {
        return vec![Vec::new(), Vec::new()];
    }
    // Turns that need several counters must not give way to each other for ever.
    let count = one_of(chance, &[1, 2, 4]);
    let first: Vec<Limit> =
        ["puts", "all", "more", "looks"][..count].iter().map(|name| limit(name, shards, chance)).collect();
    let second = match chance.random_range(0..3) {
        0 => first.clone(),
        1 => Vec::new(),
        _ => first.iter().map(|limit| Limit { bound: bound(limit.every, chance), ..limit.clone() }).collect(),
    };
    vec![first, second]
}

fn limit(name: &str, shards: u32, chance: &mut StdRng) -> Limit {
    let tools = match name {
        "puts" => vec![TOOLS[1].to_owned()],
        "looks" => vec![TOOLS[0].to_owned()],
        _ => Vec::new(),
    };
    // What belongs to no tenant is divided among the shards.
    let keys = if shards == 1 { 3 } else { 2 };
    let every = one_of(chance, &[Every::Tick, Every::Period(1_000), Every::Period(2_000), Every::Held, Every::Held]);
    let per = [&[LimitKey::Tenant][..], &[LimitKey::Agent], &[]][chance.random_range(0..keys)];
    Limit {
        name: name.to_owned(),
        matches: LimitMatch { tools, ..LimitMatch::default() },
        per: per.iter().cloned().collect::<BTreeSet<_>>(),
        bound: bound(every, chance),
        every,
        on_reach: one_of(chance, &[OnReach::Wait, OnReach::Wait, OnReach::Reject]),
        mode: LimitMode::Enforce,
        keys_max: one_of(chance, &[1_000, 1]),
    }
}

/// A limit that would refuse most, and is in shadow: nothing becomes of it.
pub(super) fn shade() -> Limit {
    Limit {
        name: "shade".to_owned(),
        matches: LimitMatch::default(),
        per: [LimitKey::Tenant].into(),
        bound: LimitBound::Calls(1),
        every: Every::Tick,
        on_reach: OnReach::Reject,
        mode: LimitMode::Shadow,
        keys_max: 1_000,
    }
}

/// How much a counter allows; few places, so that many wait for one.
fn bound(every: Every, chance: &mut StdRng) -> LimitBound {
    if every == Every::Held {
        return LimitBound::Concurrent(chance.random_range(1..4));
    }
    LimitBound::Calls(chance.random_range(3..9))
}

/// Whether a limit counts the calls of a tool.
pub(crate) fn counts(limit: &Limit, tool: &str) -> bool {
    limit.matches.tools.is_empty() || limit.matches.tools.iter().any(|name| name == tool)
}

/// A counter that a call debits: its name, the beginning of its window, and the most that it may reach.
pub(crate) struct Counted {
    pub(crate) name: String,
    pub(crate) window_ms: i64,
    pub(crate) max: u32,
}

impl Settings {
    /// The counters that a call of a tool debits at this time, whichever configuration decides. Where one of them has no
    /// such limit, nothing can be said; nor where a limit may have one counter only, which many share.
    pub(crate) fn counted(&self, tenant: &TenantId, agent: &AgentId, tool: &str, now_ms: i64) -> Vec<Counted> {
        let [first, second] = self.limits.as_slice() else { return Vec::new() };
        let pairs = first.iter().filter_map(|one| Some((one, second.iter().find(|other| other.name == one.name)?)));
        let of = |(one, other): (&Limit, &Limit)| {
            if one.keys_max == 1 || one.mode == LimitMode::Shadow || one.every == Every::Held || !counts(one, tool) {
                return None;
            }
            let key = match one.per.iter().next() {
                Some(LimitKey::Tenant) => tenant.to_string(),
                Some(_) => format!("{tenant}:{agent}"),
                None => String::new(),
            };
            // Windows of several configurations end at bounds of either: between two bounds there is one at most.
            let begun = |tick_ms: i64| {
                let length = one.period_ms(tick_ms).unwrap_or(1);
                now_ms - (now_ms - counter_stagger_ms(&one.name, &key, length)).rem_euclid(length)
            };
            let window_ms = self.caps.iter().map(|caps| begun(caps.tick_ms)).max().unwrap_or(0);
            let max = u32::try_from(one.bound.max().max(other.bound.max())).unwrap_or(u32::MAX);
            Some(Counted { name: format!("{}@{key}", one.name), window_ms, max })
        };
        pairs.filter_map(of).collect()
    }

    /// The limits of calls that are out at the same time, with the most that they may be, whichever configuration decides.
    pub(crate) fn placed(&self) -> Vec<(&Limit, usize)> {
        let [first, second] = self.limits.as_slice() else { return Vec::new() };
        let of = |one: &'_ Limit| second.iter().find(|other| other.name == one.name).map(|other| other.bound.max());
        let held = first.iter().filter(|one| one.every == Every::Held);
        held.filter_map(|one| Some((one, usize::try_from(one.bound.max().max(of(one)?)).unwrap_or(usize::MAX))))
            .collect()
    }
}
