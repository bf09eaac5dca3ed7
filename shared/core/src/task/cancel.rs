//! Cancels a turn or task in any state.
//!
//! A cancel is a separate record ([`Cancellation`]), so that the turn's record does not change: the worker with the
//! slice keeps its fence, and reports the calls that ran. The turn's timer, which is due at once, ends the turn. A
//! cancel that arrives before its turn waits for the admission. Such early cancels are bounded in number and lifetime.

use tickfleet_model::{RejectionCode, limits};

use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::Stored;
use crate::transaction::{Conflict, Guard, TimerRule, Transaction, Write};
use crate::turn::dead_letter::DeadLetter;
use crate::turn::end::{GivenId, GivenState, cascade_timer};
use crate::turn::{Cancellation, Turn};
use crate::view::{Query, Undecided, Value, View};

const EXPIRED_MAX: usize = 8;

/// Cancels everything below the turn, too.
#[derive(Debug, Clone)]
pub struct Cancel<'a> {
    pub name: TurnName,
    pub reason: String,
    /// The ended turn or task that caused this cancel.
    pub above: Option<TurnName>,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canceled {
    /// The turn ends at once, or when its running call ends.
    Ending,
    Ended,
    /// The turn has not arrived yet, and will end when it arrives.
    Waiting,
    /// The tenant has too many waiting cancels, so this cancel is not stored.
    Full,
    Unknown,
    /// The turn's record is unreadable. A cancel of an ancestor skips the turn.
    Unreadable,
}

impl Decision for Cancel<'_> {
    type Output = Canceled;

    fn reads(&self) -> Vec<Query> {
        [self.name.record(), self.name.cancellation()].into_iter().map(Query::Record).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Canceled>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(above) = &self.above {
            transaction.leave(above.descendants(), self.name.turn.as_str());
        }
        match view.record::<Turn>(&self.name.record()) {
            Ok(Some(turn)) => self.end(transaction, view, context, &turn),
            Ok(None) => self.cancel_absent(transaction, view, context),
            // An unreadable record must not block the cancels of the other descendants.
            Err(Undecided::Unreadable { why, .. }) if self.above.is_some() => {
                let (entry, raw) = (self.name.to_string(), why.to_string().into());
                let (reason, tenant) = (RejectionCode::Unreadable, Some(&self.name.tenant));
                let letter = DeadLetter { from: "under", entry: &entry, reason, raw, tenant };
                letter.add_to(&mut transaction, self.bounds);
                Ok(Step::Commit(transaction, Canceled::Unreadable))
            }
            Err(undecided) => Err(undecided),
        }
    }
}

impl Cancel<'_> {
    fn end(
        &self,
        mut transaction: Transaction,
        view: &View,
        context: &Context,
        turn: &Stored<Turn>,
    ) -> Result<Step<Canceled>, Undecided> {
        let key = self.name.cancellation();
        let now_ms = context.now_ms;
        let known = view.record::<Cancellation>(&key)?;
        transaction.guard(Guard::Present(self.name.record())).guard_read(&key, known.as_ref());
        let admitted_ms = Some(turn.value.admitted_ms);
        // A second cancel keeps the reason of the first one.
        if known.is_none_or(|known| known.value.admitted_ms != admitted_ms) {
            let cancellation = Cancellation { reason: bounded(&self.reason), admitted_ms };
            let left_ms = (turn.value.head.deadline_ms - now_ms).max(0);
            transaction.put_for(&key, &cancellation, left_ms + 2 * self.bounds.lease_ms);
        }
        transaction.timer(self.name.timer(), now_ms, TimerRule::Earlier);
        transaction.timer(cascade_timer(&self.name), now_ms, TimerRule::Earlier);
        Ok(Step::Commit(transaction, Canceled::Ending))
    }

    fn cancel_absent(
        &self,
        mut transaction: Transaction,
        view: &View,
        context: &Context,
    ) -> Result<Step<Canceled>, Undecided> {
        // The turn may have been admitted between the reads of its record and of its ID.
        if !mutant!("early_cancel_guards_the_absence") {
            transaction.guard(Guard::Absent(self.name.record()));
        }
        let given = view.record::<GivenId>(&self.name.given())?.map(|given| given.value.state);
        let has_ended = given == Some(GivenState::Ended) || self.is_finished(view)?;
        if has_ended || self.above.is_some() && given != Some(GivenState::Queued) {
            transaction.timer(cascade_timer(&self.name), context.now_ms, TimerRule::Earlier);
            return Ok(Step::Commit(transaction, Canceled::Ended));
        }
        if given == Some(GivenState::Admitted) {
            return Ok(Step::Commit(transaction, Canceled::Unknown));
        }
        if context.failed(|conflict| *conflict == Conflict::Full) {
            // The cancel of an ancestor must still remove this turn from the set of descendants. Otherwise it would
            // never finish.
            let commits = self.above.is_some();
            return Ok(if commits { Step::Commit(transaction, Canceled::Full) } else { Step::Return(Canceled::Full) });
        }
        self.wait(transaction, view, context)
    }

    fn is_finished(&self, view: &View) -> Result<bool, Undecided> {
        Ok(!matches!(view.get(&Query::Record(self.name.finished()))?, Value::Record(None)))
    }

    fn wait(&self, mut transaction: Transaction, view: &View, context: &Context) -> Result<Step<Canceled>, Undecided> {
        let key = self.name.cancellation();
        let set = keys::early(&self.name.tenant);
        let now_ms = context.now_ms;
        let member: std::sync::Arc<str> = self.name.turn.as_str().into();
        let known = view.record::<Cancellation>(&key)?;
        if known.as_ref().is_some_and(|known| known.value.admitted_ms.is_none()) && self.above.is_none() {
            return Ok(Step::Return(Canceled::Waiting));
        }
        if !mutant!("early_cancel_guards_the_absence") {
            transaction.guard(Guard::Absent(self.name.finished()));
        }
        transaction.guard_read(&key, known.as_ref());
        let expired = view.first(&set, Some(u64::try_from(now_ms).unwrap_or(0)), EXPIRED_MAX)?;
        let max = limits::EARLY_CANCELS_MAX as u64 + expired.len() as u64;
        if !mutant!("early_cancel_guards_the_bound") {
            transaction.guard(Guard::Fits { set: set.clone(), member: member.clone(), max });
        }
        for (expired, _) in expired {
            transaction.leave(set.clone(), expired.clone());
        }
        transaction.join(set, member, now_ms + limits::EARLY_CANCEL_MS);
        let cancellation = Cancellation { reason: bounded(&self.reason), admitted_ms: None };
        transaction.put_for(&key, &cancellation, limits::EARLY_CANCEL_MS);
        Ok(Step::Commit(transaction, Canceled::Waiting))
    }
}

fn bounded(reason: &str) -> String {
    let max = limits::REASON_BYTES_MAX.min(reason.len());
    let upto = (0..=max).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
    reason.get(..upto).unwrap_or_default().to_owned()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownCancel {
    /// Fails if a cancel of this turn is written.
    pub guard: Guard,
    /// `None` if the turn is not canceled. A cancel of an earlier turn with this ID does not count.
    pub reason: Option<String>,
}

/// Requests no read: a cancel that was not read counts as absent. If the cancel exists, the guard fails, and the
/// conflict returns the record.
pub fn cancel_of(view: &View, name: &TurnName, admitted_ms: i64) -> Result<KnownCancel, Undecided> {
    let key = name.cancellation();
    let is_known = view.get(&Query::Record(key.clone())).is_ok();
    let Some(Stored { version, value, .. }) = (if is_known { view.record::<Cancellation>(&key)? } else { None }) else {
        return Ok(KnownCancel { guard: Guard::Absent(key), reason: None });
    };
    let is_of_turn = value.admitted_ms.is_none_or(|at| at == admitted_ms);
    Ok(KnownCancel { guard: Guard::Version(key, version), reason: is_of_turn.then_some(value.reason) })
}

/// Removes the early cancel: either the admission ends the turn, or the cancel belongs to an earlier turn with this ID.
pub fn take_early(transaction: &mut Transaction, name: &TurnName) {
    transaction.write(Write::Delete(name.cancellation())).leave(keys::early(&name.tenant), name.turn.as_str());
}
