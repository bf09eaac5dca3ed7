//! Releases turns from a throttle queue with a due timer. [`Rearm`] sets the timer before [`Release`] evaluates turns,
//! so a permit that is returned later makes the timer due again. If a turn left the queue, both steps are repeated.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_model::{Call, RejectionCode};

use super::advance::{AdvanceResult, Candidate, leave_queue};
use super::dead_letter::DeadLetter;
use super::due::EndSection;
use super::end::{Render, parts};
use super::limit::Policy;
use super::limit::evaluate::PERMIT_CHECK_MS;
use super::state::{EndReason, State, Turn};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::Unreadable;
use crate::task::cancel::cancel_of;
use crate::transaction::{Conflict, CounterKey, Guard, RecordKey, TimerRule, Transaction, Write};
use crate::view::{Query, Undecided, View};

pub const HEADS_MAX: usize = 16;
/// Shortest delay (ms) before a turn that stays at the head is checked again.
const AGAIN_MS: i64 = 20;
const NOT_FIRST_MAX: usize = 4;

pub struct Rearm {
    pub counter: CounterKey,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueHead {
    Turns(Vec<TurnName>),
    Empty,
}

impl Rearm {
    fn query(&self) -> Query {
        Query::First { set: keys::throttle_queue(&self.counter), upto: None, count: HEADS_MAX }
    }
}

impl Decision for Rearm {
    type Output = QueueHead;

    fn reads(&self) -> Vec<Query> {
        vec![self.query()]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<QueueHead>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        let set = keys::throttle_queue(&self.counter);
        let timer = keys::throttle_timer(&self.counter);
        if context.failed(|conflict| matches!(conflict, Conflict::Full | Conflict::NoMember)) {
            // Check again at once, because the queue has changed since the read.
            transaction.timer(timer, context.now_ms, TimerRule::Set);
            return Ok(Step::Commit(transaction, QueueHead::Turns(Vec::new())));
        }
        let members = view.first(&set, None, HEADS_MAX)?;
        let Some((first, _)) = members.first() else {
            // No member has an empty name, so the guard holds only for an empty set.
            transaction.guard(Guard::Fits { set, member: "".into(), max: 1 }).write(Write::ClearTimer(timer.into()));
            return Ok(Step::Commit(transaction, QueueHead::Empty));
        };
        // A turn that joins ahead sets an earlier time. This write must not overwrite that time.
        if !mutant!("rearm_guards_the_first") {
            transaction.guard(Guard::First(set.clone(), Arc::clone(first)));
        }
        transaction.timer(timer, context.now_ms + PERMIT_CHECK_MS, TimerRule::Set);
        let mut turns = Vec::with_capacity(members.len());
        for (member, _) in members {
            match TurnName::parse(member) {
                Some(name) => turns.push(name),
                None => {
                    let queue_of = Some(self.counter.clone());
                    transaction.write(Write::RemoveMember { set: set.clone(), member: Arc::clone(member), queue_of });
                }
            }
        }
        Ok(Step::Commit(transaction, QueueHead::Turns(turns)))
    }
}

pub struct Release<'a> {
    pub counter: CounterKey,
    pub name: TurnName,
    pub policy: &'a dyn Policy,
    pub render: &'a dyn Render,
    pub sections: &'a [&'a dyn EndSection],
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseResult {
    Advanced(AdvanceResult),
    /// The turn waits for another event or has ended, and is no longer in the queue.
    Gone,
    Stays,
    Behind,
    /// The policy or the run-time settings are outdated. Nothing was written.
    PolicyStale,
}

impl ReleaseResult {
    /// True if the turn has left the queue. The next turn may then be released at once.
    #[must_use]
    pub const fn has_left_queue(&self) -> bool {
        matches!(self, Self::Advanced(_) | Self::Gone)
    }
}

impl Decision for Release<'_> {
    type Output = ReleaseResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<ReleaseResult>, Undecided> {
        if context.failed(|conflict| matches!(conflict, Conflict::Generation { .. })) {
            return Ok(Step::Return(ReleaseResult::PolicyStale));
        }
        let not_first = context.conflicts.iter().filter(|conflict| **conflict == Conflict::NoMember).count();
        if not_first >= NOT_FIRST_MAX {
            return Ok(Step::Return(ReleaseResult::Behind));
        }
        let mut transaction = Transaction::new(context.version.clone());
        let Some(stored) = view.record::<Turn>(&self.name.record())? else {
            transaction.guard(Guard::Absent(self.name.record())).write(leave_queue(&self.name, &self.counter));
            return Ok(Step::Commit(transaction, ReleaseResult::Gone));
        };
        if !mutant!("release_guards_the_version") {
            transaction.guard(Guard::Version(self.name.record(), stored.version.clone()));
        }
        if !matches!(&stored.value.state, State::Throttled { counter, .. } if *counter == self.counter) {
            transaction.write(leave_queue(&self.name, &self.counter));
            return Ok(Step::Commit(transaction, ReleaseResult::Gone));
        }
        if !mutant!("release_in_order") {
            transaction.guard(Guard::First(keys::throttle_queue(&self.counter), self.name.to_string().into()));
        }
        self.release(stored.value, transaction, view, context)
    }
}

enum TaskState {
    None,
    Unfinished(u64),
    Over,
}

impl Release<'_> {
    fn release(
        &self,
        turn: Turn,
        mut transaction: Transaction,
        view: &View,
        context: &Context,
    ) -> Result<Step<ReleaseResult>, Undecided> {
        transaction.dedupe_record = Some(self.name.record());
        let guards = transaction.guards.clone();
        let (ends, canceled) = self.ends(&turn, &mut transaction, view, context)?;
        let (task, over) = match self.task(&turn, &mut transaction, view)? {
            TaskState::None => (None, false),
            TaskState::Unfinished(budget) => (Some(budget), false),
            TaskState::Over => (None, true),
        };
        let mut candidate = self.candidate(turn, task, view)?;
        let advanced = match ends {
            Some(reason) => {
                candidate.turn.canceled = candidate.turn.canceled.or(canceled);
                candidate.end(reason, &mut transaction, view, context)?
            }
            None if over => {
                candidate.turn.canceled = Some("the task that it ran under has ended".to_owned());
                candidate.end(EndReason::Canceled, &mut transaction, view, context)?
            }
            None => candidate.advance(&mut transaction, view, context)?,
        };
        let AdvanceResult::Stays { due_ms, woken, .. } = advanced else {
            return Ok(Step::Commit(transaction, ReleaseResult::Advanced(advanced)));
        };
        if woken {
            // A permit that was returned since [`Rearm`] set the timer makes the timer due again.
            return Ok(Step::Return(ReleaseResult::Stays));
        }
        let mut transaction = Transaction { guards, ..Transaction::new(context.version.clone()) };
        let due_ms = due_ms.max(context.now_ms + AGAIN_MS);
        transaction.timer(keys::throttle_timer(&self.counter), due_ms, TimerRule::Set);
        Ok(Step::Commit(transaction, ReleaseResult::Stays))
    }

    /// The second value is the reason of the cancellation.
    fn ends(
        &self,
        turn: &Turn,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<(Option<EndReason>, Option<String>), Undecided> {
        let cancel = cancel_of(view, &self.name, turn.admitted_ms)?;
        transaction.guard(cancel.guard);
        if cancel.reason.is_some() {
            transaction.write(Write::Delete(self.name.cancellation()));
            return Ok((Some(EndReason::Canceled), cancel.reason));
        }
        if turn.head.deadline_ms > context.now_ms {
            return Ok((None, None));
        }
        transaction.guard(Guard::Since(turn.head.deadline_ms));
        Ok((Some(EndReason::Expired), None))
    }

    fn task(&self, turn: &Turn, transaction: &mut Transaction, view: &View) -> Result<TaskState, Undecided> {
        let Some((task, _)) = &turn.head.task else { return Ok(TaskState::None) };
        let key = RecordKey::new(format!("turn:{}:{task}", self.name.tenant));
        let Some(stored) = view.record::<Turn>(&key)? else {
            transaction.guard(Guard::Absent(key));
            return Ok(TaskState::Over);
        };
        match stored.value.task {
            Some(part) if !matches!(stored.value.state, State::Ending { .. }) => {
                transaction.guard(Guard::Present(key));
                Ok(TaskState::Unfinished(part.budget))
            }
            _ => {
                transaction.guard(Guard::Version(key, stored.version));
                Ok(TaskState::Over)
            }
        }
    }

    fn candidate(&self, turn: Turn, budget: Option<u64>, view: &View) -> Result<Candidate<'_>, Undecided> {
        let names: Vec<Arc<str>> = (turn.position..turn.head.calls).map(parts::call).collect();
        let stored = view.parts(&self.name.record(), names)?;
        let texts: Option<Vec<Bytes>> = stored.iter().cloned().collect();
        let texts = texts.ok_or_else(|| Undecided::Unreadable {
            key: self.name.record(),
            why: Unreadable::Json("a call is missing".to_owned()),
        })?;
        // An unreadable call counts as a call without a tool name, so that limits still apply.
        let unread = || Call { provider_id: None, tool: String::new(), arguments: String::new() };
        let calls = texts.iter().map(|text| serde_json::from_slice(text).unwrap_or_else(|_| unread())).collect();
        let name = &self.name;
        let policy = self.policy;
        let render = self.render;
        let bounds = self.bounds;
        let sections = self.sections;
        Ok(Candidate { name, turn, calls, texts, budget, is_new: false, policy, render, sections, bounds })
    }
}

/// Removes an unreadable turn from the queue. The turn's record stays for inspection.
pub struct Discard<'a> {
    pub counter: CounterKey,
    pub name: TurnName,
    pub why: String,
    pub bounds: &'a Bounds,
}

impl Decision for Discard<'_> {
    type Output = ();

    fn decide(&self, _view: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        transaction.write(leave_queue(&self.name, &self.counter));
        let queue = keys::throttle_queue(&self.counter);
        let name = self.name.to_string();
        let reason = RejectionCode::Unreadable;
        let raw = Bytes::from(self.why.clone());
        let letter = DeadLetter { from: queue.as_str(), entry: &name, reason, raw, tenant: None };
        letter.add_to(&mut transaction, self.bounds);
        Ok(Step::Commit(transaction, ()))
    }
}
