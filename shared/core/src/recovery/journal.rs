//! The journal of a worker: events that the worker reports again if the store has lost its last writes.
//!
//! The journal has begun calls, and the changes of facts and claims at the ends of calls, in order. Its epoch is the
//! last restart epoch for which the worker has reported everything. While a report is due or in progress, the epoch is
//! 0 and no call begins. So the report is complete.
//!
//! An entry is kept while the store can still lose the commit of its event. The journal is bounded, and drops the
//! oldest results first. A call without its result is reported as begun: its producer receives an unknown result, and a
//! `once` call is not repeated.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::epoch::{JournaledOutcome, ReportBegunCall};
use crate::mutant;
use crate::turn::end::RenderedCall;
use crate::turn::slice::Delivery;

const CONFIRMED_MAX: usize = 100_000;
const REPEATABLE_MAX: usize = 5_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report<E> {
    Call(ReportBegunCall),
    Change(E),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalCall {
    pub delivery: Delivery,
    pub digest: String,
    pub position: usize,
    pub by: String,
    pub once: bool,
    /// Time (ms) after which the turn can no longer be redelivered.
    pub until_ms: i64,
}

#[derive(Debug)]
enum Content<E> {
    Call(JournalCall, JournaledOutcome),
    Change(E),
}

#[derive(Debug)]
struct Entry<E> {
    content: Content<E>,
    bytes: usize,
    /// `None` while the call is in flight.
    confirmed_ms: Option<i64>,
    reported: bool,
}

#[derive(Debug)]
pub struct Journal<E> {
    /// In the order of the events.
    entries: BTreeMap<u64, Entry<E>>,
    next: u64,
    epoch: u64,
    open: HashMap<Delivery, Vec<u64>>,
    /// In the order of confirmation, without [`Self::repeatable`].
    confirmed: VecDeque<u64>,
    /// In the order of confirmation.
    repeatable: VecDeque<u64>,
    /// Entries with results or other large content, oldest first.
    large: VecDeque<u64>,
    kept_ms: i64,
    bytes: usize,
    bytes_max: usize,
}

impl<E: Clone> Journal<E> {
    /// A restart of the store may lose commits that are younger than `kept_ms`.
    #[must_use]
    pub fn new(kept_ms: i64, bytes_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            next: 0,
            epoch: 0,
            open: HashMap::new(),
            confirmed: VecDeque::new(),
            repeatable: VecDeque::new(),
            large: VecDeque::new(),
            kept_ms,
            bytes: 0,
            bytes_max,
        }
    }

    /// 0 while a report is due or in progress.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns false if a report is due or in progress, or if the store has restarted since `epoch`. The store may then
    /// have lost the commit that began the call.
    #[must_use]
    pub fn begin(&mut self, call: JournalCall, epoch: u64) -> bool {
        if (self.epoch == 0 || self.epoch != epoch) && !mutant!("no_call_begins_during_a_report") {
            return false;
        }
        let delivery = call.delivery.clone();
        let number = self.add(Entry {
            content: Content::Call(call, JournaledOutcome::Begun),
            bytes: 0,
            confirmed_ms: None,
            reported: false,
        });
        self.open.entry(delivery).or_default().push(number);
        true
    }

    /// Must precede the commit of the result.
    pub fn end(&mut self, delivery: &Delivery, position: usize, result: RenderedCall) {
        let bytes = size(&result);
        if let Some(number) = self.set(delivery, position, JournaledOutcome::Ended(Box::new(result)), bytes) {
            self.large.push_back(number);
            self.drop_results();
        }
    }

    /// The call certainly had no effect. A reported call needs a second report, which withdraws the first report.
    pub fn undo(&mut self, delivery: &Delivery, position: usize) -> Option<ReportBegunCall> {
        let number = self.set(delivery, position, JournaledOutcome::Undone, 0)?;
        let entry = self.entries.get(&number).filter(|entry| entry.reported)?;
        match &entry.content {
            Content::Call(call, outcome) => Some(self.report(call, outcome.clone(), call.until_ms)),
            Content::Change(_) => None,
        }
    }

    pub fn change(&mut self, change: E, bytes: usize, now_ms: i64) {
        let content = Content::Change(change);
        let number = self.add(Entry { content, bytes, confirmed_ms: Some(now_ms), reported: false });
        self.bytes += bytes;
        self.confirmed.push_back(number);
        if bytes > 0 {
            self.large.push_back(number);
            self.drop_results();
        }
        self.drop_oldest();
    }

    /// Confirms the results before position `upto`. If the worker lost the slice, `upto` is `usize::MAX`.
    pub fn confirm(&mut self, delivery: &Delivery, upto: usize, now_ms: i64) {
        let Self { entries, open, confirmed, repeatable, .. } = self;
        let Some(calls) = open.get_mut(delivery) else { return };
        calls.retain(|number| {
            let Some(entry) = entries.get_mut(number) else { return false };
            let Content::Call(call, _) = &entry.content else { return false };
            if call.position >= upto {
                return true;
            }
            entry.confirmed_ms = Some(now_ms);
            if call.once {
                confirmed.push_back(*number)
            } else {
                repeatable.push_back(*number)
            }
            false
        });
        if calls.is_empty() {
            open.remove(delivery);
        }
        self.drop_oldest();
    }

    pub fn forget(&mut self, now_ms: i64) {
        let before_ms = now_ms - self.kept_ms;
        let is_old = |entries: &BTreeMap<u64, Entry<E>>, number: &u64| {
            entries
                .get(number)
                .is_none_or(|entry| entry.confirmed_ms.is_some_and(|confirmed_ms| confirmed_ms < before_ms))
        };
        while let Some(number) = pop_front_if(&mut self.confirmed, |number| is_old(&self.entries, number)) {
            self.remove(number);
        }
        while let Some(number) = pop_front_if(&mut self.repeatable, |number| is_old(&self.entries, number)) {
            self.remove(number);
        }
        while pop_front_if(&mut self.large, |number| !self.entries.contains_key(number)).is_some() {}
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// No call begins until [`Self::reported`] is called.
    pub fn reports(&mut self, now_ms: i64) -> impl Iterator<Item = Report<E>> + '_ {
        self.epoch = 0;
        self.entries.values_mut().for_each(|entry| entry.reported = true);
        let journal = &*self;
        journal.entries.values().map(move |entry| match &entry.content {
            Content::Change(change) => Report::Change(change.clone()),
            Content::Call(call, outcome) => Report::Call(journal.report(call, outcome.clone(), now_ms)),
        })
    }

    pub fn reported(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    #[must_use]
    pub fn report_of(&self, delivery: &Delivery, position: usize, now_ms: i64) -> Option<ReportBegunCall> {
        let number = self.find(delivery, position)?;
        match &self.entries.get(&number)?.content {
            Content::Call(call, outcome) => Some(self.report(call, outcome.clone(), now_ms)),
            Content::Change(_) => None,
        }
    }

    fn report(&self, call: &JournalCall, outcome: JournaledOutcome, now_ms: i64) -> ReportBegunCall {
        ReportBegunCall {
            name: call.delivery.name.clone(),
            digest: call.digest.clone(),
            position: call.position,
            by: call.by.clone(),
            once: call.once,
            outcome,
            keep_ms: (call.until_ms - now_ms).max(self.kept_ms),
        }
    }

    fn add(&mut self, entry: Entry<E>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.entries.insert(number, entry);
        number
    }

    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            self.bytes -= entry.bytes;
        }
    }

    fn find(&self, delivery: &Delivery, position: usize) -> Option<u64> {
        let is_it = |number: &&u64| {
            let content = self.entries.get(number).map(|entry| &entry.content);
            matches!(content, Some(Content::Call(call, _)) if call.position == position)
        };
        self.open.get(delivery)?.iter().rev().find(is_it).copied()
    }

    fn set(&mut self, delivery: &Delivery, position: usize, outcome: JournaledOutcome, bytes: usize) -> Option<u64> {
        let number = self.find(delivery, position)?;
        let entry = self.entries.get_mut(&number)?;
        if let Content::Call(_, known) = &mut entry.content {
            *known = outcome;
        }
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        Some(number)
    }

    fn drop_results(&mut self) {
        while self.bytes > self.bytes_max {
            let Some(number) = self.large.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            match &mut entry.content {
                Content::Call(_, outcome @ JournaledOutcome::Ended(_)) => {
                    *outcome = JournaledOutcome::Begun;
                    self.bytes -= std::mem::take(&mut entry.bytes);
                }
                Content::Call(..) => {}
                Content::Change(_) => self.remove(number),
            }
        }
    }

    fn drop_oldest(&mut self) {
        while self.confirmed.len() > CONFIRMED_MAX {
            let Some(number) = self.confirmed.pop_front() else { return };
            self.remove(number);
        }
        while self.repeatable.len() > REPEATABLE_MAX {
            let Some(number) = self.repeatable.pop_front() else { return };
            self.remove(number);
        }
    }
}

const fn size(result: &RenderedCall) -> usize {
    result.result.len() + result.message.len() + result.audit.len()
}

fn pop_front_if(numbers: &mut VecDeque<u64>, condition: impl FnOnce(&u64) -> bool) -> Option<u64> {
    if numbers.front().is_some_and(condition) { numbers.pop_front() } else { None }
}
