use std::borrow::Cow;

use super::end::{Ending, RenderedCall, ReplyFrame, append_call_audits, parts, return_permits};
use super::holder;
use super::slice::Slice;
use super::state::{EndReason, State, Turn};
use super::throttle::{throttle, undecided_queue};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName, limits};
use crate::record::Stored;
use crate::section::{self, Section};
use crate::transaction::{Conflict, CounterKey, Transaction, Version, Write};
use crate::view::{Undecided, View};

/// Commits the results of a slice's next calls. A turn with only one slice settles without a read, because the slice
/// has the turn's record and version.
#[derive(Clone, Copy)]
pub struct Settle<'a> {
    pub slice: &'a Slice,
    /// From the turn's position on.
    pub results: &'a [RenderedCall],
    pub frame: &'a ReplyFrame,
    pub sections: &'a [&'a dyn Section],
    pub reason: Option<&'a EndReason>,
    pub canceled: Option<&'a str>,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SettleResult {
    Ended,
    /// The holder keeps the slice, see [`Slice::advance`].
    Continues {
        /// The new fence.
        version: Version,
        turn: Box<Turn>,
    },
    Throttled,
    /// The caller no longer holds the slice. Nothing was written.
    Stale,
    /// Calls may have run in the meantime. The caller must confirm the unrun calls again, see
    /// [`crate::recovery::epoch::ConfirmedUnrunCalls`]. Nothing was written.
    Unsure,
}

impl Decision for Settle<'_> {
    type Output = SettleResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<SettleResult>, Undecided> {
        let slice = self.slice;
        let turn = &self.slice.turn;
        if holder::is_stale(slice, context) {
            return Ok(Step::Return(self.committed_before(view)?));
        }
        if self.has_uncertain_calls(context) {
            return Ok(Step::Return(SettleResult::Unsure));
        }
        let mut transaction = Transaction::new(context.version.clone());
        holder::guard_version(&mut transaction, slice);
        section::add_readable(self.sections, &mut transaction, view, context, self.bounds)?;
        let done = turn.position + self.results.len();
        if done < turn.head.calls && turn.state.in_flight_upto().is_some_and(|upto| done < upto) {
            return Ok(self.continue_slice(transaction, context.now_ms));
        }
        let settled = if done < turn.head.calls {
            self.requeue_rest(&mut transaction, context.now_ms);
            SettleResult::Throttled
        } else {
            self.end(&mut transaction, view, context)?;
            SettleResult::Ended
        };
        holder::acknowledge(&mut transaction, slice, context);
        Ok(Step::Commit(transaction, settled))
    }
}

impl Settle<'_> {
    /// If the record has this entry and the position after these results, an earlier commit succeeded. The holder then
    /// keeps the slice.
    fn committed_before(&self, view: &View) -> Result<SettleResult, Undecided> {
        let slice = self.slice;
        let done = slice.turn.position + self.results.len();
        let is_ours = |stored: &Stored<Turn>| {
            stored.in_flight_entry() == Some(&slice.entry) && !self.results.is_empty() && stored.value.position == done
        };
        let stored = view.record::<Turn>(&slice.name.record())?.filter(is_ours);
        Ok(stored.map_or(SettleResult::Stale, |stored| SettleResult::Continues {
            version: stored.version,
            turn: Box::new(stored.value),
        }))
    }

    fn has_uncertain_calls(&self, context: &Context) -> bool {
        let recovered = keys::recovered_calls(&self.slice.name);
        context.failed(|conflict| match conflict {
            Conflict::Epoch { .. } => true,
            Conflict::Record { key, .. } => *key == recovered,
            _ => false,
        })
    }

    fn end(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let name = &self.slice.name;
        let mut turn = Cow::Borrowed(&self.slice.turn);
        if let Some(why) = self.canceled {
            turn.to_mut().canceled = Some(why.to_owned());
            transaction.write(Write::Delete(name.cancellation()));
        }
        let results = match turn.position {
            0 => Cow::Borrowed(self.results),
            position => {
                let mut all = earlier_results(view, name, position, self.frame)?;
                all.extend_from_slice(self.results);
                Cow::Owned(all)
            }
        };
        let ending = Ending {
            name,
            turn: &turn,
            results: &results,
            new_from: turn.position,
            reason: self.reason.cloned(),
            debited: &self.slice.debited,
            frame: self.frame,
            bounds: self.bounds,
            now_ms: context.now_ms,
            pressure: context.pressure,
        };
        ending.add_to(transaction, view)
    }

    fn continue_slice(&self, mut transaction: Transaction, now_ms: i64) -> Step<SettleResult> {
        let slice = self.slice;
        let mut turn = self.keep_results(&mut transaction, now_ms);
        if let Some(upto) = turn.state.in_flight_upto() {
            turn.state = State::Ready { upto };
        }
        turn.entry = Some(slice.entry.clone());
        transaction.put(&slice.name.record(), &turn);
        transaction.dedupe_record = Some(slice.name.record());
        let version = transaction.version.clone();
        Step::Commit(transaction, SettleResult::Continues { version, turn: Box::new(turn) })
    }

    fn requeue_rest(&self, transaction: &mut Transaction, now_ms: i64) {
        let name = &self.slice.name;
        let mut turn = self.keep_results(transaction, now_ms);
        return_permits(transaction, &turn, now_ms);
        if turn.is_in_flight() {
            holder::count_in_flight(transaction, name, -1);
        }
        turn.clear_slice_state();
        let counter = undecided_queue(name, &turn);
        throttle(transaction, name, &mut turn, counter, self.next_due(now_ms), now_ms);
        transaction.dedupe_record = Some(name.record());
    }

    /// Returns a time (ms): the end of the agent's tick if this slice has used up the tick, or else now.
    fn next_due(&self, now_ms: i64) -> i64 {
        let admitted = self.slice.turn.notes.iter().rev().find_map(|note| match note {
            super::Note::Admitted { limits, .. } => Some(limits),
            _ => None,
        });
        let mut debits = admitted.into_iter().flatten().zip(&self.slice.debited);
        let tick = debits.find(|((counter, _), _)| &*counter.limit == limits::TICK);
        // If the list of notes is full, the last note may belong to an earlier slice, so it is ignored.
        let is_noted = self.slice.turn.notes.len() < Turn::NOTES_MAX;
        tick.filter(|((_, max), debited)| is_noted && debited.used >= *max)
            .map_or(now_ms, |(_, debited)| debited.ends_ms.max(now_ms))
    }

    fn keep_results(&self, transaction: &mut Transaction, now_ms: i64) -> Turn {
        let name = &self.slice.name;
        let mut turn = self.slice.turn.clone();
        let mut bytes = 0;
        let entries = self.results.iter().map(|one| &one.audit);
        let debited = self.slice.debited.as_slice();
        append_call_audits(transaction, entries, &self.slice.turn, turn.position, debited, self.bounds, now_ms);
        for (position, one) in (turn.position..).zip(self.results) {
            let mut put = |part, text: &bytes::Bytes| {
                bytes += text.len() as u64;
                transaction.write(Write::PutPart(name.record(), part, text.clone()));
            };
            put(parts::result(position), &one.result);
            if self.frame.messages.is_some() {
                put(parts::message(position), &one.message);
            }
            if self.frame.audits {
                put(parts::audit(position), &one.audit);
            }
        }
        let counter = CounterKey::new(limits::BYTES, name.tenant.as_str());
        transaction.write(Write::Add { counter, amount: i64::try_from(bytes).unwrap_or(i64::MAX), ends_ms: None });
        turn.bytes += bytes;
        turn.pass_calls(self.results.len());
        turn
    }
}

impl Turn {
    /// Advances the position, and clears the state of the call at the old position.
    pub(super) fn pass_calls(&mut self, calls: usize) {
        if calls == 0 {
            return;
        }
        self.position += calls;
        self.begun = self.begun.take().filter(|begun| begun.position >= self.position);
        self.attempts = 0;
        self.began_child = false;
        (self.session, self.approval, self.local) = (None, None, None);
    }

    /// `may_have_run` stays true only if the next call was already dispatched.
    fn clear_slice_state(&mut self) {
        self.may_have_run = self.position < self.debited && (self.may_have_run || self.crashes > 0);
        self.clear_suspicion();
        // `begun` is not cleared: an earlier holder may have begun a later call.
        self.entry = None;
        self.permits.clear();
    }
}

/// The audit entries are empty if the reply does not carry them.
pub(super) fn earlier_results(
    view: &View,
    name: &TurnName,
    position: usize,
    frame: &ReplyFrame,
) -> Result<Vec<RenderedCall>, Undecided> {
    let names = (0..position).flat_map(|at| [parts::result(at), parts::message(at), parts::audit(at)]);
    let found = view.parts(&name.record(), names.collect())?;
    let text = |part: Option<&Option<bytes::Bytes>>| part.cloned().flatten().unwrap_or_default();
    let read = |three: &[Option<bytes::Bytes>]| RenderedCall {
        result: text(three.first()),
        message: if frame.messages.is_some() { text(three.get(1)) } else { bytes::Bytes::new() },
        audit: if frame.audits { text(three.get(2)) } else { bytes::Bytes::new() },
        failed: false,
    };
    Ok(found.chunks(3).map(read).collect())
}
