//! Who was held up by what: whether a limit and a cap held up calls whose order depends on both.
//!
//! Agents whose calls waited for the same counter belong together, as whoever goes first takes the other's room. Only where a
//! limit and a cap held up calls of agents that belong together does their order follow from what the log does not have.

use std::collections::HashMap;

use tickfleet_model::limit::LimitKey;

use super::{Replay, agent_of, whose};
use crate::whatif::turns::Turn;
use crate::whatif::{DAY, TICK, limit};

/// Agents, and the counters that they share: those that belong together are one group.
#[derive(Default)]
pub(super) struct HeldUp {
    numbers: HashMap<String, usize>,
    groups: Vec<Group>,
}

/// A member of a group; what is known of the group, its root has.
struct Group {
    /// Another member, nearer to the root; the root is its own.
    parent: usize,
    by_cap: bool,
    by_limit: bool,
}

impl HeldUp {
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

    /// Notes that a cap or a limit held up calls of an agent. `shared` names what others wait for, too.
    pub(super) fn note(&mut self, agent: &str, shared: Option<&str>, (by_cap, by_limit): (bool, bool)) {
        let agent = self.number(agent);
        let mut root = self.root(agent);
        if let Some(shared) = shared {
            let other = self.number(shared);
            let other = self.root(other);
            self.groups[root].parent = other;
            let (cap, limit) = (self.groups[root].by_cap, self.groups[root].by_limit);
            self.groups[other].by_cap |= cap;
            self.groups[other].by_limit |= limit;
            root = other;
        }
        self.groups[root].by_cap |= by_cap;
        self.groups[root].by_limit |= by_limit;
    }

    /// Whether both held up calls of an agent, or of those that belong to it.
    pub(super) fn is_by_both(&mut self, agent: &str) -> bool {
        let Some(number) = self.numbers.get(agent).copied() else { return false };
        let root = self.root(number);
        self.groups[root].by_cap && self.groups[root].by_limit
    }
}

impl Replay<'_> {
    /// Something holds up calls of a turn, in the fleet or here.
    pub(super) fn is_held_up(&mut self, turn: &Turn, by: &str) {
        let (by_cap, by_limit) = ([TICK, DAY].contains(&by), by.starts_with("limits."));
        if by_cap || by_limit {
            let shared = self.shared(turn, by);
            self.held_up.note(&agent_of(turn), shared.as_deref(), (by_cap, by_limit));
        }
    }

    /// What other agents wait for, too, that wait for this; none where it is the agent's alone.
    fn shared(&self, turn: &Turn, by: &str) -> Option<String> {
        let of_tenant = || format!("{} {by}", turn.tenant);
        if by == TICK {
            return None;
        }
        if by == DAY {
            let has_day = |whose: super::Whose<'_>| {
                self.fleet.policy.caps(whose.owner, whose.policy).tenant_calls_per_day.is_some()
            };
            return whose(&self.fleet, turn).is_ok_and(has_day).then(of_tenant);
        }
        // A limit that only the fleet had may have counted anything.
        let Some(known) = self.fleet.policy.limits.iter().find(|known| limit(&known.name) == by) else {
            return Some(by.to_owned());
        };
        if known.per.contains(&LimitKey::Agent) {
            return None;
        }
        Some(if known.per.iter().any(LimitKey::is_of_tenant) { of_tenant() } else { by.to_owned() })
    }
}
