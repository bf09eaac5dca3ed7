//! Agents form a group if their calls waited for the same counter. If a limit and a cap both delayed calls of a group,
//! the log does not show the order of these calls.

use std::collections::HashMap;

use tickfleet_model::limit::LimitKey;

use super::{Replay, agent_of, caller_of};
use crate::whatif::turns::Turn;
use crate::whatif::{DAY, TICK, limit};

#[derive(Default)]
pub(super) struct DelayGroups {
    numbers: HashMap<String, usize>,
    groups: Vec<Group>,
}

/// `by_cap` and `by_limit` of the root are for the whole group.
struct Group {
    /// A member closer to the root. The root is its own parent.
    parent: usize,
    by_cap: bool,
    by_limit: bool,
}

impl DelayGroups {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.groups.len();
        self.groups.push(Group { parent: number, by_cap: false, by_limit: false });
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn root(&mut self, mut number: usize) -> usize {
        while self.groups[number].parent != number {
            let above = self.groups[number].parent;
            self.groups[number].parent = self.groups[above].parent;
            number = above;
        }
        number
    }

    /// `shared` is a counter for which other agents wait too.
    pub(super) fn record(&mut self, agent: &str, shared: Option<&str>, (by_cap, by_limit): (bool, bool)) {
        let agent = self.number(agent);
        let mut root = self.root(agent);
        if let Some(shared) = shared {
            let other = self.number(shared);
            let other = self.root(other);
            self.groups[root].parent = other;
            let cap = self.groups[root].by_cap;
            let limit = self.groups[root].by_limit;
            self.groups[other].by_cap |= cap;
            self.groups[other].by_limit |= limit;
            root = other;
        }
        self.groups[root].by_cap |= by_cap;
        self.groups[root].by_limit |= by_limit;
    }

    pub(super) fn is_by_both(&mut self, agent: &str) -> bool {
        let Some(number) = self.numbers.get(agent).copied() else { return false };
        let root = self.root(number);
        self.groups[root].by_cap && self.groups[root].by_limit
    }
}

impl Replay<'_> {
    /// `by` is the cap or limit that delays calls of the turn, in the fleet or in the replay.
    pub(super) fn record_delay(&mut self, turn: &Turn, by: &str) {
        let by_cap = [TICK, DAY].contains(&by);
        let by_limit = by.starts_with("limits.");
        if by_cap || by_limit {
            let shared = self.shared(turn, by);
            self.delay_groups.record(&agent_of(turn), shared.as_deref(), (by_cap, by_limit));
        }
    }

    /// The name of the counter of `by`, if agents share the counter. `None` if each agent has its own.
    fn shared(&self, turn: &Turn, by: &str) -> Option<String> {
        let of_tenant = || format!("{} {by}", turn.tenant);
        if by == TICK {
            return None;
        }
        if by == DAY {
            let has_day = |caller: super::TurnCaller<'_>| {
                self.fleet.policy.caps(caller.owner, caller.policy).tenant_calls_per_day.is_some()
            };
            return caller_of(&self.fleet, turn).is_ok_and(has_day).then(of_tenant);
        }
        // The policy lacks this limit of the fleet, so assume that all agents share its counter.
        let Some(known) = self.fleet.policy.limits.iter().find(|known| limit(&known.name) == by) else {
            return Some(by.to_owned());
        };
        if known.per.contains(&LimitKey::Agent) {
            return None;
        }
        Some(if known.per.iter().any(LimitKey::is_of_tenant) { of_tenant() } else { by.to_owned() })
    }
}
