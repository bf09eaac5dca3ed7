//! Dead letters and failed calls. An operator drops or replays each of them at most once.
//!
//! | Key | Holds |
//! |---|---|
//! | log `dead` | dead letters |
//! | record `handled:<entry of the dead log>` | the letter was dropped or replayed; kept for a day |
//! | record `handled:call:<entry of the audit log>` | the failed call was dropped or replayed |
//! | set `handled` | failed calls that were handled, by entry; the score is the time of the entry in ms |
//!
//! Entries of the audit log never change, so a record marks a handled call. The record is kept as long as the call's
//! entry, see [`ForgetHandled`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tickfleet_model::limits;

use crate::audit::AuditAppend;
use crate::decision::{Context, Decision, Step};
use crate::keys;
use crate::record::{Record, Stored};
use crate::transaction::{EntryId, Guard, RecordKey, SetKey, Transaction, Write};
use crate::view::{Query, Undecided, Value, View};

const DAY_MS: i64 = 24 * 3_600_000;
const FORGET_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadItem {
    /// By its entry in the dead log.
    Letter(EntryId),
    /// A permanently failed call, by its entry in the audit log.
    Call(EntryId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    Dropped,
    Replayed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handled {
    #[serde(rename = "h")]
    pub handling: Handling,
}

impl Record for Handled {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotHandled {
    Gone,
    Again(Handling),
    /// [`ForgetHandled`] makes room.
    Full,
}

/// By entry. The score is the entry's time (ms).
#[must_use]
pub fn handled_calls() -> SetKey {
    SetKey::new("handled")
}

impl DeadItem {
    #[must_use]
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Letter(entry) => RecordKey::new(format!("handled:{entry}")),
            Self::Call(entry) => RecordKey::new(format!("handled:call:{entry}")),
        }
    }

    fn handle(
        &self,
        handling: Handling,
        view: &View,
        transaction: &mut Transaction,
    ) -> Result<Option<NotHandled>, Undecided> {
        let key = self.key();
        let stored: Option<Stored<Handled>> = view.record(&key)?;
        if let Some(stored) = stored {
            return Ok(Some(NotHandled::Again(stored.value.handling)));
        }
        transaction.guard(Guard::Absent(key.clone()));
        let handled = Handled { handling };
        match self {
            Self::Letter(entry) => {
                if view.entry(&keys::dead(), entry)?.is_none() {
                    return Ok(Some(NotHandled::Gone));
                }
                transaction.write(Write::Remove(keys::dead(), entry.clone())).put_for(&key, &handled, DAY_MS);
            }
            Self::Call(entry) => {
                if view.entry(&keys::audit(), entry)?.is_none() {
                    return Ok(Some(NotHandled::Gone));
                }
                // A small overrun is acceptable, because operators rarely handle failed calls.
                if let Value::Size(size) = view.get(&Query::Size(handled_calls()))?
                    && *size >= limits::HANDLED_CALLS_MAX as u64
                {
                    return Ok(Some(NotHandled::Full));
                }
                let member = entry.as_str().into();
                let score = written_ms(entry);
                transaction.write(Write::AddMember { set: handled_calls(), member, score, queue_of: None });
                transaction.put(&key, &handled);
            }
        }
        Ok(None)
    }
}

fn written_ms(entry: &EntryId) -> u64 {
    entry.as_str().split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0)
}

#[derive(Debug, Clone)]
pub struct DropDead {
    pub item: DeadItem,
    pub entry: AuditAppend,
}

impl Decision for DropDead {
    type Output = Result<(), NotHandled>;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.item.key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Self::Output>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(why) = self.item.handle(Handling::Dropped, view, &mut transaction)? {
            return Ok(Step::Return(Err(why)));
        }
        self.entry.append_to(&mut transaction);
        transaction.dedupe_record = Some(self.item.key());
        Ok(Step::Commit(transaction, Ok(())))
    }
}

/// One transaction submits the turn or task and marks the item. So no item is replayed twice, or marked without a
/// submission.
#[derive(Debug, Clone)]
pub struct Replay<S> {
    pub item: DeadItem,
    pub submission: S,
    pub entry: AuditAppend,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayResult<T> {
    Submitted(T),
    Refused(T),
    NotHandled(NotHandled),
}

impl<S: Decision> Decision for Replay<S> {
    type Output = ReplayResult<S::Output>;

    fn reads(&self) -> Vec<Query> {
        let mut reads = self.submission.reads();
        reads.push(Query::Record(self.item.key()));
        reads
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Self::Output>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(why) = self.item.handle(Handling::Replayed, view, &mut transaction)? {
            return Ok(Step::Return(ReplayResult::NotHandled(why)));
        }
        self.entry.append_to(&mut transaction);
        match self.submission.decide(view, context)? {
            Step::Commit(mut submission, result) => {
                submission.guards.splice(0..0, transaction.guards);
                submission.writes.append(&mut transaction.writes);
                submission.dedupe_record = Some(self.item.key());
                Ok(Step::Commit(submission, ReplayResult::Submitted(result)))
            }
            Step::Return(result) => Ok(Step::Return(ReplayResult::Refused(result))),
        }
    }
}

/// Removes marks of calls that are no longer in the audit log. Repeat this decision until it returns 0.
#[derive(Debug, Clone)]
pub struct ForgetHandled {
    pub log_begins_ms: u64,
}

impl Decision for ForgetHandled {
    type Output = usize;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<usize>, Undecided> {
        let Some(upto) = self.log_begins_ms.checked_sub(1) else { return Ok(Step::Return(0)) };
        let members: Vec<Arc<str>> =
            view.first(&handled_calls(), Some(upto), FORGET_MAX)?.iter().map(|(member, _)| member.clone()).collect();
        if members.is_empty() {
            return Ok(Step::Return(0));
        }
        let mut transaction = Transaction::new(context.version.clone());
        let count = members.len();
        for member in members {
            transaction
                .write(Write::Delete(DeadItem::Call(EntryId::new(&member)).key()))
                .leave(handled_calls(), member);
        }
        Ok(Step::Commit(transaction, count))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Conflict;
    use crate::trial::Trial;

    struct Submit;

    impl Decision for Submit {
        type Output = bool;

        fn decide(&self, _: &View, context: &Context) -> Result<Step<bool>, Undecided> {
            if context.failed(|conflict| *conflict == Conflict::Full) {
                return Ok(Step::Return(false));
            }
            let mut transaction = Transaction::new(context.version.clone());
            transaction.guard(Guard::Within(keys::turns(), 1));
            transaction.write(Write::Enqueue(keys::turns(), vec![("turn".into(), Bytes::from_static(b"{}"))]));
            Ok(Step::Commit(transaction, true))
        }
    }

    fn entry() -> AuditAppend {
        AuditAppend { text: Bytes::from_static(b"{}"), entries_max: 100 }
    }

    fn append(shard: &mut Trial, log: crate::StreamKey) -> EntryId {
        let mut transaction = Transaction::new(shard.context().version);
        transaction.write(Write::Append { log: log.clone(), fields: vec![], max_entries: 100 });
        shard.commit(&transaction).unwrap();
        shard.log(&log).last().unwrap().0.clone()
    }

    #[test]
    fn a_dead_letter_is_dropped_once() {
        let mut shard = Trial::at(1_000);
        let drop_it = DropDead { item: DeadItem::Letter(append(&mut shard, keys::dead())), entry: entry() };
        let gone = DropDead { item: DeadItem::Letter(EntryId::new("7-0")), entry: entry() };
        assert_eq!(shard.run(&gone), Err(NotHandled::Gone));
        assert_eq!(shard.run(&drop_it), Ok(()));
        assert_eq!(shard.run(&drop_it), Err(NotHandled::Again(Handling::Dropped)));
        assert!(shard.log(&keys::dead()).is_empty());
        assert_eq!(shard.log(&keys::audit()).len(), 1);
        shard.pass(DAY_MS);
        assert_eq!(shard.run(&drop_it), Err(NotHandled::Gone));
    }

    #[test]
    fn concurrent_operators_handle_a_dead_item_once() {
        let mut shard = Trial::at(1_000);
        for log in [keys::dead(), keys::audit()] {
            shard.queues.remove(&keys::turns());
            let id = append(&mut shard, log.clone());
            let item = if log == keys::dead() { DeadItem::Letter(id) } else { DeadItem::Call(id) };
            let replay = Replay { item: item.clone(), submission: Submit, entry: entry() };
            let dropped = DropDead { item, entry: entry() };
            let first = shard.step(&replay);
            let second = shard.step(&dropped);
            assert_eq!(shard.finish(&replay, first).result, ReplayResult::Submitted(true));
            assert_eq!(shard.finish(&dropped, second).result, Err(NotHandled::Again(Handling::Replayed)));
            assert_eq!(shard.log(&keys::turns()).len(), 1);
        }
    }

    #[test]
    fn a_rejected_replay_keeps_the_dead_letter() {
        let mut shard = Trial::at(1_000);
        append(&mut shard, keys::turns());
        let item = DeadItem::Letter(append(&mut shard, keys::dead()));
        let replay = Replay { item, submission: Submit, entry: entry() };
        assert_eq!(shard.run(&replay), ReplayResult::Refused(false));
        assert_eq!(shard.log(&keys::dead()).len(), 1);
        assert!(shard.log(&keys::audit()).is_empty());
        shard.queues.remove(&keys::turns());
        assert_eq!(shard.run(&replay), ReplayResult::Submitted(true));
        assert!(shard.log(&keys::dead()).is_empty());
    }

    #[test]
    fn handled_calls_are_removed_with_their_audit_entries() {
        let mut shard = Trial::at(1_000);
        let call = DropDead { item: DeadItem::Call(append(&mut shard, keys::audit())), entry: entry() };
        assert_eq!(shard.run(&call), Ok(()));
        assert_eq!(shard.run(&ForgetHandled { log_begins_ms: 1 }), 0);
        assert_eq!(shard.run(&call), Err(NotHandled::Again(Handling::Dropped)));
        assert_eq!(shard.run(&ForgetHandled { log_begins_ms: 2 }), 1);
        assert!(shard.members(&handled_calls()).is_empty());
        assert!(shard.records.is_empty());
    }

    #[test]
    fn too_many_handled_calls_are_refused() {
        let mut shard = Trial::at(1_000);
        let item = DeadItem::Call(append(&mut shard, keys::audit()));
        let members = (0..limits::HANDLED_CALLS_MAX).map(|member| (member.to_string().into(), 1)).collect();
        shard.sets.insert(handled_calls(), members);
        assert_eq!(shard.run(&DropDead { item, entry: entry() }), Err(NotHandled::Full));
    }
}
