//! Reads the records of other turns that a facts check needs, and detects deadlocks.
//!
//! A running call never waits for facts. So a cycle of waits includes another kind of wait: for a task, an inner call,
//! an equal call, or a throttle queue. A call does not wait if its wait would close a cycle. Instead, the check decides
//! from the known facts, or refuses the call as [`super::FactState::Undecided`].

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{TenantId, TurnId};

use crate::keys::TurnName;
use crate::record::Stored;
use crate::transaction::{CounterKey, Transaction};
use crate::turn::{State, Turn, WaitReason};
use crate::view::{Query, Undecided, View};

/// Longer chains of waits are not followed.
const CHAIN_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dependence {
    None,
    /// Such as a task of which the call is a part.
    Own,
    Circle,
}

/// Each record is read once and guarded.
pub struct Turns<'a> {
    view: &'a View,
    tenant: &'a TenantId,
    own_id: &'a TurnId,
    own: &'a Turn,
    read: BTreeMap<TurnId, Option<Stored<Turn>>>,
    unreadable: BTreeSet<TurnId>,
}

impl<'a> Turns<'a> {
    /// The caller guards `own`.
    #[must_use]
    pub const fn new(view: &'a View, tenant: &'a TenantId, own_id: &'a TurnId, own: &'a Turn) -> Self {
        Self { view, tenant, own_id, own, read: BTreeMap::new(), unreadable: BTreeSet::new() }
    }

    pub(super) const fn view(&self) -> &View {
        self.view
    }

    pub(super) fn need<'t>(&self, turns: impl IntoIterator<Item = &'t TurnId>) -> Result<(), Undecided> {
        let others = turns.into_iter().filter(|turn| *turn != self.own_id);
        let name = |turn: &TurnId| TurnName { tenant: self.tenant.clone(), turn: turn.clone() };
        Ok(self.view.need(others.map(|turn| Query::Record(name(turn).record())))?)
    }

    /// An unreadable record must affect only its own turn, so it counts as absent.
    pub(super) fn get(&mut self, turn: &TurnId) -> Result<Option<&Turn>, Undecided> {
        if turn == self.own_id {
            return Ok(Some(self.own));
        }
        if self.unreadable.contains(turn) {
            return Ok(None);
        }
        if !self.read.contains_key(turn) {
            let name = TurnName { tenant: self.tenant.clone(), turn: turn.clone() };
            let stored = match self.view.record::<Turn>(&name.record()) {
                Ok(stored) => stored,
                Err(Undecided::Unreadable { .. }) => {
                    self.unreadable.insert(turn.clone());
                    return Ok(None);
                }
                Err(missing) => return Err(missing),
            };
            self.read.insert(turn.clone(), stored);
        }
        Ok(self.read.get(turn).and_then(Option::as_ref).map(|stored| &stored.value))
    }

    pub(super) fn guard(&self, transaction: &mut Transaction) {
        for (turn, stored) in &self.read {
            let key = TurnName { tenant: self.tenant.clone(), turn: turn.clone() }.record();
            transaction.guard_read(&key, stored.as_ref());
        }
    }

    /// The own turn returns its permits while the call waits, so only the permits of turns above count.
    fn callers(&mut self) -> Result<(BTreeSet<TurnId>, BTreeSet<CounterKey>), Undecided> {
        let mut callers = BTreeSet::new();
        let mut permits = BTreeSet::new();
        let mut next = Some(self.own_id.clone());
        while let Some(turn) = next.filter(|_| callers.len() < CHAIN_MAX) {
            let found = self.get(&turn)?;
            let is_own = callers.is_empty();
            if let Some(found) = found.filter(|_| !is_own) {
                permits.extend(found.permits.iter().map(|(counter, _)| counter.clone()));
            }
            let task = found.and_then(|found| found.head.task.as_ref().map(|(task, _)| task.clone()));
            let parent = found.and_then(|found| found.task.as_ref()?.parent.clone());
            next = outer_turn(&turn).or_else(|| task.or(parent).map(TurnId::from));
            callers.insert(turn);
        }
        Ok((callers, permits))
    }

    pub(super) fn dependence(&mut self, turn: &TurnId) -> Result<Dependence, Undecided> {
        let (callers, permits) = self.callers()?;
        let mut word = Dependence::Own;
        let mut turn = turn.clone();
        for _ in 0..CHAIN_MAX {
            if callers.contains(&turn) {
                return Ok(word);
            }
            let Some(found) = self.get(&turn)? else { return Ok(Dependence::None) };
            let awaited = match &found.state {
                State::Waiting { reason: WaitReason::Child { turn }, .. } => turn.clone(),
                State::Waiting { reason: WaitReason::Fact { turn } | WaitReason::EqualCall { turn }, .. } => {
                    word = Dependence::Circle;
                    turn.clone()
                }
                State::Throttled { counter, .. } if permits.contains(counter) => return Ok(Dependence::Circle),
                _ => return Ok(Dependence::None),
            };
            if awaited == turn {
                return Ok(Dependence::None);
            }
            turn = awaited;
        }
        Ok(Dependence::None)
    }
}
