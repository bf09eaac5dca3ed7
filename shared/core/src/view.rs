//! A view has the values that a decision has read so far. If a value is missing, the decision returns the query as
//! [`Missing`], and the caller reads the value and decides again. A value may be stale: the guards of the transaction
//! detect stale values.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::record::{Record, RecordText, Stored, Unreadable};
use crate::transaction::{
    Conflict, CounterKey, CounterState, EntryId, RecordKey, SetKey, StreamKey, Transaction, Write,
};

/// Maximum number of rounds of reads, to bound chains of records. A list takes one round, see [`View::need`].
pub const READS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Query {
    Record(RecordKey),
    Parts(RecordKey, Vec<Arc<str>>),
    AllParts(RecordKey),
    Counter(CounterKey),
    /// At most `count` members with scores up to `upto`. `None` allows any score.
    First {
        set: SetKey,
        upto: Option<u64>,
        count: usize,
    },
    Score(SetKey, Arc<str>),
    Size(SetKey),
    Entry(StreamKey, EntryId),
    Holder(StreamKey, EntryId),
    /// At most `count` entries, oldest first.
    Holds {
        stream: StreamKey,
        consumer: Arc<str>,
        count: usize,
    },
    /// At most `count` entries after `after`, or from the stream's start.
    Entries {
        stream: StreamKey,
        after: Option<EntryId>,
        count: usize,
    },
}

pub type Fields = Vec<(Arc<str>, Bytes)>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    Record(Option<Bytes>),
    Parts(Vec<Option<Bytes>>),
    AllParts(Vec<(Arc<str>, Bytes)>),
    Counter(Option<CounterState>),
    Members(Vec<(Arc<str>, u64)>),
    Score(Option<u64>),
    Size(u64),
    Entry(Option<Fields>),
    Holder(Option<Arc<str>>),
    Holds(Vec<EntryId>),
    Entries(Vec<(EntryId, Fields)>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub Vec<Query>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undecided {
    /// These queries must be read before the decision can be made.
    Missing(Vec<Query>),
    Unreadable {
        key: RecordKey,
        why: Unreadable,
    },
}

impl From<Missing> for Undecided {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing.0)
    }
}

#[derive(Debug, Clone, Default)]
pub struct View {
    values: HashMap<Query, Value>,
}

impl View {
    pub fn insert(&mut self, query: Query, value: Value) {
        self.values.insert(query, value);
    }

    pub fn extend(&mut self, other: Self) {
        self.values.extend(other.values);
    }

    #[must_use]
    pub fn pick<'q>(&self, queries: impl IntoIterator<Item = &'q Query>) -> Self {
        let picked = queries.into_iter().filter_map(|query| Some((query.clone(), self.values.get(query)?.clone())));
        Self { values: picked.collect() }
    }

    pub fn remove(&mut self, query: &Query) {
        self.values.remove(query);
    }

    pub fn forget(&mut self, key: &RecordKey) {
        self.values.retain(|query, _| match query {
            Query::Record(of) | Query::Parts(of, _) | Query::AllParts(of) => of != key,
            _ => true,
        });
    }

    pub fn learn(&mut self, conflict: &Conflict) {
        match conflict {
            Conflict::Record { key, stored } => {
                // The parts may be outdated, because they belong to the old version of the record.
                self.values.retain(|query, _| !matches!(query, Query::Parts(of, _) | Query::AllParts(of) if of == key));
                self.insert(Query::Record(key.clone()), Value::Record(stored.clone()));
            }
            Conflict::LimitReached { counter, state } => {
                self.insert(Query::Counter(counter.clone()), Value::Counter(Some(*state)));
            }
            _ => {}
        }
    }

    /// Adds the written records to the view, so that the writer need not read them again.
    pub fn apply_transaction(&mut self, transaction: &Transaction) {
        let enqueues = transaction.writes.iter().any(|write| matches!(write, Write::Enqueue(..)));
        let is_plain = !enqueues && !transaction.stamped;
        for write in &transaction.writes {
            let (key, stored) = match write {
                // If the store adds an entry or counters, the caller does not know the stored text.
                Write::Put { key, content, .. } => {
                    (key, is_plain.then(|| Some(RecordText::render(&transaction.version, None, &[], content))))
                }
                Write::Delete(key) => (key, Some(None)),
                Write::PutPart(key, ..) | Write::DeleteParts(key, _) => (key, None),
                _ => continue,
            };
            self.values.retain(|query, _| !matches!(query, Query::Parts(of, _) | Query::AllParts(of) if of == key));
            match (stored, write) {
                (Some(stored), _) => self.insert(Query::Record(key.clone()), Value::Record(stored)),
                (None, Write::Put { .. }) => self.remove(&Query::Record(key.clone())),
                (None, _) => {}
            }
        }
    }

    pub fn get(&self, query: &Query) -> Result<&Value, Missing> {
        self.values.get(query).ok_or_else(|| Missing(vec![query.clone()]))
    }

    /// Lets a decision read a list in one round. Reading the members one by one fails beyond [`READS_MAX`] members.
    pub fn need(&self, queries: impl IntoIterator<Item = Query>) -> Result<(), Missing> {
        let missing: Vec<Query> = queries.into_iter().filter(|query| !self.values.contains_key(query)).collect();
        if missing.is_empty() { Ok(()) } else { Err(Missing(missing)) }
    }

    pub fn record<T: Record>(&self, key: &RecordKey) -> Result<Option<Stored<T>>, Undecided> {
        match self.get(&Query::Record(key.clone()))? {
            Value::Record(Some(stored)) => {
                Stored::read(stored).map(Some).map_err(|why| Undecided::Unreadable { key: key.clone(), why })
            }
            _ => Ok(None),
        }
    }

    /// `None` if the counter does not exist or was not read. A full counter that was not read causes a conflict.
    #[must_use]
    pub fn counter(&self, counter: &CounterKey) -> Option<CounterState> {
        match self.values.get(&Query::Counter(counter.clone())) {
            Some(Value::Counter(state)) => *state,
            _ => None,
        }
    }

    pub fn first(&self, set: &SetKey, upto: Option<u64>, count: usize) -> Result<&[(Arc<str>, u64)], Missing> {
        match self.get(&Query::First { set: set.clone(), upto, count })? {
            Value::Members(members) => Ok(members),
            _ => Ok(&[]),
        }
    }

    pub fn parts(&self, key: &RecordKey, names: Vec<Arc<str>>) -> Result<&[Option<Bytes>], Missing> {
        match self.get(&Query::Parts(key.clone(), names))? {
            Value::Parts(parts) => Ok(parts),
            _ => Ok(&[]),
        }
    }

    pub fn entry(&self, stream: &StreamKey, entry: &EntryId) -> Result<Option<&Fields>, Missing> {
        match self.get(&Query::Entry(stream.clone(), entry.clone()))? {
            Value::Entry(fields) => Ok(fields.as_ref()),
            _ => Ok(None),
        }
    }

    pub fn holder(&self, stream: &StreamKey, entry: &EntryId) -> Result<Option<Arc<str>>, Missing> {
        match self.get(&Query::Holder(stream.clone(), entry.clone()))? {
            Value::Holder(holder) => Ok(holder.clone()),
            _ => Ok(None),
        }
    }

    pub fn score(&self, set: &SetKey, member: &str) -> Result<Option<u64>, Missing> {
        match self.get(&Query::Score(set.clone(), member.into()))? {
            Value::Score(score) => Ok(*score),
            _ => Ok(None),
        }
    }
}
