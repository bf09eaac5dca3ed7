//! The journal of a worker: the events that it reports again if the store lost its last writes.
//!
//! It holds `once` calls, and the changes of facts and claims at their ends, in the order of the events. An entry stays
//! until the store can no longer lose its commit. The journal is bounded in bytes: it drops the oldest results first, and
//! then reports their calls as begun. The producer of such a call receives an unknown result, and the call is never
//! repeated.

use std::collections::VecDeque;

use super::epoch::{Assert, Outcome};
use crate::keys::TurnName;
use crate::turn::end::RenderedCall;

/// A reported entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report<E> {
    /// A begun call.
    Call(Assert),
    /// A change of facts, or an effect claim.
    Change(E),
}

/// A call that a worker begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalCall {
    /// The turn.
    pub name: TurnName,
    /// Digest of its content.
    pub digest: String,
    /// The call's position.
    pub position: usize,
    /// The attempt.
    pub by: String,
    /// When the turn can no longer be redelivered, ms.
    pub until_ms: i64,
}

#[derive(Debug)]
enum Content<E> {
    Call(JournalCall, Outcome),
    Change(E),
}

#[derive(Debug)]
struct Entry<E> {
    content: Content<E>,
    /// When the store confirmed it, ms. `None` while it is in flight.
    confirmed_ms: Option<i64>,
}

/// The journal.
#[derive(Debug)]
pub struct Journal<E> {
    entries: VecDeque<Entry<E>>,
    kept_ms: i64,
    bytes: usize,
    bytes_max: usize,
}

impl<E: Clone> Journal<E> {
    /// An empty journal. The store may lose commits that are younger than `kept_ms`. Results take up to `bytes_max`.
    #[must_use]
    pub const fn new(kept_ms: i64, bytes_max: usize) -> Self {
        Self { entries: VecDeque::new(), kept_ms, bytes: 0, bytes_max }
    }

    /// Records that a call begins. Must precede the commit of the begin.
    pub fn begin(&mut self, call: JournalCall) {
        self.entries.push_back(Entry { content: Content::Call(call, Outcome::Begun), confirmed_ms: None });
    }

    /// Records that a call has ended. Must precede the commit of the result.
    pub fn end(&mut self, name: &TurnName, position: usize, result: RenderedCall) {
        self.bytes += size(&result);
        self.set(name, position, Outcome::Ended(result));
        let over = |entry: &&mut Entry<E>| matches!(entry.content, Content::Call(_, Outcome::Ended(_)));
        while self.bytes > self.bytes_max {
            let Some(entry) = self.entries.iter_mut().find(over) else { return };
            if let Content::Call(_, outcome) = &mut entry.content
                && let Outcome::Ended(result) = std::mem::replace(outcome, Outcome::Begun)
            {
                self.bytes -= size(&result);
            }
        }
    }

    /// Records that a begun call certainly did nothing.
    pub fn undo(&mut self, name: &TurnName, position: usize) {
        self.set(name, position, Outcome::Undone);
    }

    /// Records the change of a fact or claim at the end of a call.
    pub fn change(&mut self, change: E, now_ms: i64) {
        self.entries.push_back(Entry { content: Content::Change(change), confirmed_ms: Some(now_ms) });
    }

    /// Records that the store confirmed a turn's results before `upto`, or that the worker lost the turn (`usize::MAX`).
    pub fn confirm(&mut self, name: &TurnName, upto: usize, now_ms: i64) {
        for entry in &mut self.entries {
            let is_confirmed =
                matches!(&entry.content, Content::Call(call, _) if call.name == *name && call.position < upto);
            if is_confirmed && entry.confirmed_ms.is_none() {
                entry.confirmed_ms = Some(now_ms);
            }
        }
    }

    /// Drops entries that the store can no longer lose.
    pub fn forget(&mut self, now_ms: i64) {
        let before_ms = now_ms - self.kept_ms;
        self.entries.retain(|entry| entry.confirmed_ms.is_none_or(|confirmed_ms| confirmed_ms >= before_ms));
        let results = self.entries.iter().filter_map(|entry| match &entry.content {
            Content::Call(_, Outcome::Ended(result)) => Some(size(result)),
            _ => None,
        });
        self.bytes = results.sum();
    }

    /// The reports after a restart of the store, in order.
    pub fn reports(&self, now_ms: i64) -> impl Iterator<Item = Report<E>> + '_ {
        self.entries.iter().map(move |entry| match &entry.content {
            Content::Change(change) => Report::Change(change.clone()),
            Content::Call(call, outcome) => Report::Call(Assert {
                name: call.name.clone(),
                digest: call.digest.clone(),
                position: call.position,
                by: call.by.clone(),
                outcome: outcome.clone(),
                keep_ms: (call.until_ms - now_ms).max(self.kept_ms),
            }),
        })
    }

    fn set(&mut self, name: &TurnName, position: usize, outcome: Outcome) {
        let is_it = |entry: &&mut Entry<E>| matches!(&entry.content, Content::Call(call, _) if call.name == *name && call.position == position);
        if let Some(Entry { content: Content::Call(_, known), .. }) = self.entries.iter_mut().rev().find(is_it) {
            *known = outcome;
        }
    }
}

const fn size(result: &RenderedCall) -> usize {
    result.result.len() + result.message.len() + result.audit.len()
}
