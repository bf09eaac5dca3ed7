//! The only code that ends a turn or task.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{Call, TurnId};

use super::parked::leave_parked;
use super::state::{EndReason, Finished, Head, State, Turn, WaitReason};
use crate::audit::admitted;
use crate::bounds::Bounds;
use crate::keys::{self, TurnName, limits};
use crate::record::{Debited, Record};
use crate::transaction::{ConditionalDebit, CounterKey, Guard, TimerRule, Transaction, Write};
use crate::view::{Query, Undecided, Value, View};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedCall {
    pub result: Bytes,
    /// JSON. Empty if the dialect has no messages.
    pub message: Bytes,
    /// JSON. Empty if calls are not audited.
    pub audit: Bytes,
    /// False if the outcome is `ok` or `expired`.
    pub failed: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyFrame {
    /// Up to and including `"results":[`.
    pub head: String,
    /// Opening and closing text. `None` if the dialect has no messages.
    pub messages: Option<(&'static str, &'static str)>,
    pub audits: bool,
}

/// A begun call is never reported as not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionState {
    NotRun,
    /// The number of failed attempts. No attempt is running.
    Tried(u32),
    Begun,
    /// The worker that held the call died, and may have run the call.
    MayHaveRun,
    /// The runtime did not report the task's end.
    TakenByRuntime,
    /// The call waited for work outside its own turn.
    BeganChild,
}

#[derive(Debug)]
pub struct EndedCall<'a> {
    pub name: &'a TurnName,
    pub turn: &'a Turn,
    pub position: usize,
    pub call: Option<&'a Call>,
    pub reason: &'a EndReason,
    pub execution: ExecutionState,
    pub now_ms: i64,
}

/// Implementations are pure: equal input gives equal text.
pub trait Render: Sync {
    fn ended(&self, call: &EndedCall<'_>) -> RenderedCall;

    fn frame(&self, name: &TurnName, head: &Head) -> ReplyFrame;
}

impl Turn {
    #[must_use]
    pub fn execution_state(&self, position: usize) -> ExecutionState {
        if let Some(begun) = self.begun.as_ref().filter(|begun| begun.position == position) {
            return if begun.by == RUNTIME { ExecutionState::TakenByRuntime } else { ExecutionState::Begun };
        }
        let is_next = position == self.position;
        if is_next && self.began_child {
            return ExecutionState::BeganChild;
        }
        // After a crash, the dead worker may have begun another attempt, so the number of attempts is not certain.
        if is_next && self.attempts > 0 && self.crashes == 0 {
            return ExecutionState::Tried(self.attempts);
        }
        let was_in_flight = position < self.debited;
        if was_in_flight && (self.crashes > 0 || self.may_have_run) {
            ExecutionState::MayHaveRun
        } else {
            ExecutionState::NotRun
        }
    }
}

/// [`super::state::Begun::by`] of an external runtime.
pub const RUNTIME: &str = "runtime";

pub mod parts {
    use std::sync::Arc;

    /// JSON. The part exists only while no slice contains the call.
    #[must_use]
    pub fn call(position: usize) -> Arc<str> {
        format!("c{position}").into()
    }

    #[must_use]
    pub fn progress() -> Arc<str> {
        "p".into()
    }

    #[must_use]
    pub fn result(position: usize) -> Arc<str> {
        format!("r{position}").into()
    }

    #[must_use]
    pub fn message(position: usize) -> Arc<str> {
        format!("m{position}").into()
    }

    /// JSON. The part exists only if the reply carries the audit entry.
    #[must_use]
    pub fn audit(position: usize) -> Arc<str> {
        format!("a{position}").into()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenId {
    #[serde(rename = "dg")]
    pub digest: String,
    #[serde(rename = "s")]
    pub state: GivenState,
}

impl Record for GivenId {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GivenState {
    Queued,
    Admitted,
    Ended,
}

#[derive(Debug)]
pub struct Ending<'a> {
    pub name: &'a TurnName,
    pub turn: &'a Turn,
    pub results: &'a [RenderedCall],
    /// The audit log already has the results before this position.
    pub new_from: usize,
    pub reason: Option<EndReason>,
    /// The counter states that the turn's record does not have yet.
    pub debited: &'a [Debited],
    pub frame: &'a ReplyFrame,
    pub bounds: &'a Bounds,
    pub now_ms: i64,
    /// True if the store's memory is short. The finished record then does not repeat a reply in an inbox.
    pub pressure: bool,
}

impl Ending<'_> {
    /// The caller must guard the record's version, and remove the turn's slice from the queue.
    pub fn add_to(&self, transaction: &mut Transaction, view: &View) -> Result<(), Undecided> {
        let Self { name, turn, bounds, now_ms, .. } = *self;
        if turn.is_task() {
            self.return_budget(transaction, view)?;
        }
        let entries = self.results.iter().skip(self.new_from).map(|result| &result.audit);
        append_call_audits(transaction, entries, turn, self.new_from, self.debited, bounds, now_ms);
        let mut reply = self.reply();
        if let Some(inbox) = &turn.head.reply_to {
            let kept = if self.pressure { String::new() } else { reply.clone() };
            let reply = std::mem::replace(&mut reply, kept);
            transaction.write(Write::Reply(keys::inbox(&name.tenant, inbox), reply.into()));
        }
        let finished = Finished {
            admitted_ms: turn.admitted_ms,
            ended_ms: now_ms,
            digest: turn.head.digest.clone(),
            crashes: turn.crashes,
            retries: turn.retries,
            reason: self.reason.clone(),
            canceled: turn.canceled.clone(),
            notes: turn.notes.clone(),
            agent: reply.is_empty().then(|| turn.head.agent.clone()),
            reply,
        };
        transaction.dedupe_record = Some(name.finished());
        transaction.put_for(&name.finished(), &finished, bounds.retain_ms);
        transaction.write(Write::Delete(name.record())).write(Write::ClearTimer(name.timer().into()));
        leave_waits(transaction, name, turn, now_ms);
        count_in_flight(transaction, name, turn);
        if turn.given {
            let given = GivenId { digest: turn.head.digest.clone(), state: GivenState::Ended };
            transaction.put_for(&name.given(), &given, bounds.dedupe_ms);
        }
        let failed = self.results.last().is_some_and(|result| result.failed);
        if self.reason.is_some() || turn.is_task() && failed {
            transaction.timer(cascade_timer(name), now_ms, TimerRule::Set);
        }
        self.wake_waiter(transaction);
        Ok(())
    }

    fn reply(&self) -> String {
        let frame = self.frame;
        let sizes = self.results.iter().map(|one| one.result.len() + one.message.len() + one.audit.len() + 3);
        let mut text = Vec::with_capacity(frame.head.len() + sizes.sum::<usize>() + 64);
        text.extend_from_slice(frame.head.as_bytes());
        join(&mut text, self.results.iter().map(|one| &one.result));
        text.push(b']');
        if let Some((open, close)) = frame.messages {
            text.extend_from_slice(b",\"messages\":");
            text.extend_from_slice(open.as_bytes());
            join(&mut text, self.results.iter().map(|one| &one.message));
            text.extend_from_slice(close.as_bytes());
        }
        if frame.audits {
            text.extend_from_slice(b",\"tool_call_audits\":[");
            join(&mut text, self.results.iter().map(|one| &one.audit));
            text.push(b']');
        }
        text.push(b'}');
        String::from_utf8_lossy(&text).into_owned()
    }

    /// First debits the unused amount, so that no turn of the task can still spend it.
    fn return_budget(&self, transaction: &mut Transaction, view: &View) -> Result<(), Undecided> {
        let Some(task) = &self.turn.task else { return Ok(()) };
        let counter = CounterKey::new(limits::TASK, self.name.to_string());
        if let Some(parent) = &task.parent {
            let used = match view.get(&Query::Counter(counter.clone()))? {
                Value::Counter(Some(state)) => state.used,
                _ => 0,
            };
            let left = task.budget.saturating_sub(used);
            transaction.guard(Guard::Debit(ConditionalDebit::total(counter.clone(), left, task.budget)));
            let above = CounterKey::new(limits::TASK, format!("{}:{parent}", self.name.tenant));
            let amount = i64::try_from(left).map_or(i64::MIN, |left| -left);
            // `ends_ms` keeps the write from creating the deleted counter of an ended parent.
            transaction.write(Write::Add { counter: above, amount, ends_ms: Some(0) });
            for task in std::iter::once(parent).chain(&task.above) {
                if let Ok(above) = TurnId::new(task.as_str()) {
                    self.leave(transaction, &above);
                }
            }
        }
        transaction.write(Write::DeleteCounter(counter));
        Ok(())
    }

    fn wake_waiter(&self, transaction: &mut Transaction) {
        if let Some(waiter) = waiter(self.name, &self.turn.head, self.turn.is_task()) {
            let above = TurnName { tenant: self.name.tenant.clone(), turn: waiter.clone() };
            transaction.timer(above.timer(), self.now_ms, TimerRule::Wake);
            self.leave(transaction, &waiter);
        }
    }

    fn leave(&self, transaction: &mut Transaction, above: &TurnId) {
        let above = TurnName { tenant: self.name.tenant.clone(), turn: above.clone() };
        transaction.leave(above.descendants(), self.name.turn.as_str());
    }
}

#[must_use]
pub fn cascade_timer(name: &TurnName) -> String {
    format!("cascade:{name}")
}

/// The waiter of an inner call is the calling turn. The waiter of a task is the delegating turn. The waiter of any
/// other turn in a task is the task.
#[must_use]
pub fn waiter(name: &TurnName, head: &Head, is_task: bool) -> Option<TurnId> {
    if is_task {
        let turn = head.delegated_by.as_deref()?.rsplit_once('/')?.0;
        return TurnId::new(turn).ok();
    }
    let task = || head.task.as_ref().and_then(|(task, _)| TurnId::new(task.as_str()).ok());
    outer_turn(&name.turn).or_else(task)
}

/// `debited` has the counter states that the turn's record does not have yet.
pub fn append_call_audits<'a>(
    transaction: &mut Transaction,
    entries: impl Iterator<Item = &'a Bytes>,
    turn: &Turn,
    position: usize,
    debited: &[Debited],
    bounds: &Bounds,
    now_ms: i64,
) {
    let admission = bounds.audit_admissions.then(|| admitted::admitted(turn, debited)).flatten();
    for (at, entry) in (position..).zip(entries).filter(|(_, entry)| !entry.is_empty()) {
        // Calls from `turn.debited` on were never admitted.
        let admission = admission.as_ref().filter(|_| at < turn.debited);
        let entry = if bounds.audit_admissions { admitted::with_end(entry, turn, now_ms) } else { entry.clone() };
        let mut fields = vec![("audit".into(), entry)];
        fields.extend(admission.map(|admission| ("admitted".into(), admission.clone().into())));
        transaction.write(Write::Append { log: keys::audit(), fields, max_entries: bounds.audit_entries_max });
    }
}

fn count_in_flight(transaction: &mut Transaction, name: &TurnName, turn: &Turn) {
    let mut add = |limit, amount: u64| {
        let amount = i64::try_from(amount).map_or(i64::MIN, |amount| -amount);
        let counter = CounterKey::new(limit, name.tenant.as_str());
        transaction.write(Write::Add { counter, amount, ends_ms: None });
    };
    add(limits::UNFINISHED, 1);
    add(limits::BYTES, turn.bytes);
    if turn.is_in_flight() {
        add(limits::IN_FLIGHT, 1);
    }
}

pub fn leave_waits(transaction: &mut Transaction, name: &TurnName, turn: &Turn, now_ms: i64) {
    leave_parked(transaction, name, turn);
    if let State::Waiting { reason: WaitReason::Budget { counter }, .. } = &turn.state {
        transaction.leave(keys::budget_queue(counter), name.to_string());
    }
    if let State::Throttled { counter, .. } = &turn.state {
        transaction.write(Write::RemoveMember {
            set: keys::throttle_queue(counter),
            member: name.to_string().into(),
            queue_of: Some(counter.clone()),
        });
        // If this turn was first in the queue, the next turn may be dispatched at once.
        transaction.timer(keys::throttle_timer(counter), now_ms, TimerRule::Wake);
    }
    return_permits(transaction, turn, now_ms);
}

pub fn return_permits(transaction: &mut Transaction, turn: &Turn, now_ms: i64) {
    for (counter, permits) in &turn.permits {
        let amount = i64::try_from(*permits).map_or(i64::MIN, |permits| -permits);
        transaction.write(Write::Add { counter: counter.clone(), amount, ends_ms: None });
        transaction.timer(keys::throttle_timer(counter), now_ms, TimerRule::Wake);
    }
}

fn join<'a>(text: &mut Vec<u8>, parts: impl Iterator<Item = &'a Bytes>) {
    for (index, part) in parts.enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(part);
    }
}
