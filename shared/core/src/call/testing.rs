//! An in-memory store for tests, with the decision loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tickfleet_model::{AgentId, TenantId, TurnId};

use super::CallName;
use crate::keys::TurnName;
use crate::record::{Record, RecordText};
use crate::transaction::{Conflict, Guard, RecordKey, SetKey, StreamKey, TimerRule, Transaction, Version, Write};
use crate::turn::Turn;
use crate::turn::slice::Slice;
use crate::view::{Fields, Query, Undecided, Value, View};
use crate::{Context, Decision, EntryId, Step};

pub fn tenant() -> TenantId {
    TenantId::new("acme").unwrap()
}

pub fn agent() -> AgentId {
    AgentId::new("kelly").unwrap()
}

pub fn turn_id(text: &str) -> TurnId {
    TurnId::new(text).unwrap()
}

pub fn name(turn: &str) -> TurnName {
    TurnName { tenant: tenant(), turn: turn_id(turn) }
}

pub fn call(turn: &str, position: usize) -> CallName {
    CallName::new(turn_id(turn), position)
}

/// A turn with two calls and a deadline of 1,000,000 ms.
pub fn turn() -> Turn {
    serde_json::from_value(serde_json::json!({
        "h": {"ag": "kelly", "dl": 1_000_000, "ts": 1, "dg": "d0", "n": 2},
        "q": {"r": "normal"},
        "pl": 1,
        "t": 1,
        "b": 10,
        "d": 2,
        "s": {"s": "ready", "upto": 2},
    }))
    .unwrap()
}

#[derive(Debug, Default, Clone)]
pub struct MiniStore {
    pub now_ms: i64,
    pub epoch: u64,
    pub epoch_began_ms: i64,
    pub pressure: bool,
    pub records: BTreeMap<RecordKey, Bytes>,
    pub lifetimes: BTreeMap<RecordKey, Option<i64>>,
    pub parts: BTreeMap<(RecordKey, Arc<str>), Bytes>,
    pub sets: BTreeMap<SetKey, BTreeMap<Arc<str>, u64>>,
    pub logs: BTreeMap<StreamKey, Vec<Fields>>,
    pub woken: BTreeSet<String>,
    pub due: BTreeSet<String>,
    pub replies: Vec<Bytes>,
    pub commits: usize,
    pub reads: usize,
    pub versions: u64,
}

impl MiniStore {
    pub fn context(&mut self) -> Context {
        self.versions += 1;
        Context {
            now_ms: self.now_ms,
            epoch: self.epoch,
            epoch_began_ms: self.epoch_began_ms,
            pressure: false,
            version: Version::new(format!("v{}", self.versions)),
            conflicts: Vec::new(),
        }
    }

    pub fn put<T: Record>(&mut self, key: &RecordKey, value: &T) -> Version {
        let version = self.context().version;
        self.records.insert(key.clone(), RecordText::render(&version, None, &[], &value.encode()));
        version
    }

    pub fn record<T: Record>(&self, key: &RecordKey) -> Option<T> {
        let stored = self.records.get(key)?;
        Some(crate::Stored::<T>::read(stored).unwrap().value)
    }

    pub fn version(&self, key: &RecordKey) -> Version {
        RecordText::parse(&self.records[key]).unwrap().version
    }

    pub fn slice(&mut self, turn_name: &str, turn: &Turn) -> Slice {
        let name = name(turn_name);
        let version = self.put(&name.record(), turn);
        let queue = turn.queue(&name.tenant);
        let entry = EntryId::new("1-0");
        Slice { queue, entry, name, version, turn: turn.clone(), debited: Vec::new(), calls: Vec::new() }
    }

    fn read(&self, query: &Query) -> Value {
        match query {
            Query::Record(key) => Value::Record(self.records.get(key).cloned()),
            Query::Parts(key, names) => {
                Value::Parts(names.iter().map(|name| self.parts.get(&(key.clone(), name.clone())).cloned()).collect())
            }
            Query::Size(set) => Value::Size(self.sets.get(set).map_or(0, |members| members.len() as u64)),
            Query::First { set, upto, count } => {
                let members = self.sets.get(set).into_iter().flatten();
                let mut found: Vec<_> = members.map(|(member, score)| (member.clone(), *score)).collect();
                found.retain(|(_, score)| upto.is_none_or(|upto| *score <= upto));
                found.sort_by_key(|(_, score)| *score);
                found.truncate(*count);
                Value::Members(found)
            }
            Query::Score(set, member) => {
                Value::Score(self.sets.get(set).and_then(|members| members.get(member).copied()))
            }
            Query::Entries { stream, count, .. } => {
                let found = self.logs.get(stream).into_iter().flatten().take(*count);
                Value::Entries(found.map(|fields| (entry_of(fields), fields.clone())).collect())
            }
            other => panic!("{other:?} is not read here"),
        }
    }

    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), Conflict> {
        self.commits += 1;
        for guard in &transaction.guards {
            self.check(guard)?;
        }
        for write in &transaction.writes {
            self.write(transaction, write);
        }
        Ok(())
    }

    fn check(&self, guard: &Guard) -> Result<(), Conflict> {
        let changed = |key: &RecordKey| Conflict::Record { key: key.clone(), stored: self.records.get(key).cloned() };
        let version = |key: &RecordKey| self.records.contains_key(key).then(|| self.version(key));
        let holds = match guard {
            Guard::Version(key, expected) if version(key).as_ref() != Some(expected) => return Err(changed(key)),
            Guard::Absent(key) if self.records.contains_key(key) => return Err(changed(key)),
            Guard::Before(ms) => self.now_ms < *ms,
            Guard::Since(ms) => self.now_ms >= *ms,
            Guard::Epoch { number, lease_ms } => {
                let lasted = self.epoch_began_ms == 0 || self.now_ms >= self.epoch_began_ms + lease_ms;
                if *number != self.epoch || !lasted {
                    return Err(Conflict::Epoch { number: self.epoch, began_ms: self.epoch_began_ms });
                }
                true
            }
            Guard::Fits { set, member, max } => {
                let members = self.sets.get(set);
                if members.is_some_and(|all| !all.contains_key(member) && all.len() as u64 >= *max) {
                    return Err(Conflict::Full);
                }
                true
            }
            Guard::MemoryAvailable if self.pressure => return Err(Conflict::Pressure),
            _ => true,
        };
        if holds { Ok(()) } else { Err(Conflict::Time { now_ms: self.now_ms }) }
    }

    fn write(&mut self, transaction: &Transaction, write: &Write) {
        match write {
            Write::Put { key, content, ttl_ms } => {
                self.records.insert(key.clone(), RecordText::render(&transaction.version, None, &[], content));
                self.lifetimes.insert(key.clone(), *ttl_ms);
            }
            Write::PutPart(key, part, content) => {
                self.parts.insert((key.clone(), part.clone()), content.clone());
            }
            Write::DeleteParts(key, parts) => {
                for part in parts {
                    self.parts.remove(&(key.clone(), part.clone()));
                }
            }
            Write::Delete(key) => {
                self.records.remove(key);
                self.parts.retain(|(of, _), _| of != key);
            }
            Write::Timer { name, rule: TimerRule::Wake, .. } => {
                self.woken.insert(name.to_string());
            }
            Write::Timer { name, rule: TimerRule::Earlier, .. } => {
                self.due.insert(name.to_string());
            }
            Write::AddMember { set, member, score, .. } => {
                self.sets.entry(set.clone()).or_default().insert(member.clone(), *score);
            }
            Write::RemoveMember { set, member, .. } => {
                self.sets.entry(set.clone()).or_default().remove(member);
            }
            Write::Append { log, fields, .. } => self.logs.entry(log.clone()).or_default().push(fields.clone()),
            Write::Reply(_, message) => self.replies.push(message.clone()),
            Write::Timer { .. } | Write::ClearTimer(_) | Write::Add { .. } => {}
            other => panic!("{other:?} is not written here"),
        }
    }

    pub fn view_for<T>(&mut self, mut decide: impl FnMut(&View, &Context) -> Result<T, Undecided>) -> View {
        let mut view = View::default();
        let context = self.context();
        while let Err(undecided) = decide(&view, &context) {
            self.answer(&mut view, undecided);
        }
        view
    }

    fn answer(&mut self, view: &mut View, undecided: Undecided) {
        let Undecided::Missing(queries) = undecided else { panic!("{undecided:?}") };
        self.reads += 1;
        for query in queries {
            let value = self.read(&query);
            view.insert(query, value);
        }
    }

    pub fn run<D: Decision>(&mut self, decision: &D) -> D::Output {
        self.run_with(&mut View::default(), decision)
    }

    pub fn run_with<D: Decision>(&mut self, view: &mut View, decision: &D) -> D::Output {
        let mut context = self.context();
        let hinted: Vec<Query> = decision.reads().into_iter().filter(|query| view.get(query).is_err()).collect();
        self.reads += usize::from(!hinted.is_empty());
        for query in hinted {
            let value = self.read(&query);
            view.insert(query, value);
        }
        for _ in 0..64 {
            match decision.decide(view, &context) {
                Err(undecided) => self.answer(view, undecided),
                Ok(Step::Return(result)) => return result,
                Ok(Step::Commit(transaction, result)) => match self.commit(&transaction) {
                    Ok(()) => {
                        view.apply_transaction(&transaction);
                        return result;
                    }
                    Err(conflict) => {
                        view.learn(&conflict);
                        let mut conflicts = std::mem::take(&mut context.conflicts);
                        conflicts.push(conflict);
                        context = Context { conflicts, ..self.context() };
                    }
                },
            }
        }
        panic!("no result");
    }

    /// Changes the store between the section's decision and its commit. Returns true if the store refuses the commit.
    pub fn refuses_stale<T>(
        &mut self,
        section: impl Fn(&mut Transaction, &View, &Context) -> Result<T, Undecided>,
        meanwhile: impl FnOnce(&mut Self),
    ) -> bool {
        let view =
            self.view_for(|view, context| section(&mut Transaction::new(context.version.clone()), view, context));
        let context = self.context();
        let mut transaction = Transaction::new(context.version.clone());
        assert!(section(&mut transaction, &view, &context).is_ok());
        meanwhile(self);
        self.commit(&transaction).is_err()
    }

    pub fn section<T>(
        &mut self,
        section: impl Fn(&mut Transaction, &View, &Context) -> Result<T, Undecided>,
    ) -> Result<T, Conflict> {
        let mut view = View::default();
        let context = self.context();
        loop {
            let mut transaction = Transaction::new(context.version.clone());
            match section(&mut transaction, &view, &context) {
                Ok(result) => return self.commit(&transaction).map(|()| result),
                Err(undecided) => self.answer(&mut view, undecided),
            }
        }
    }
}

/// `holds` must be true, and false without the guard `mutant`.
pub fn detects(mutant: &'static str, holds: impl Fn() -> bool) {
    assert!(holds(), "{mutant}: the promise does not hold");
    assert!(!crate::mutants::with(mutant, &holds), "{mutant} survives");
}

fn entry_of(fields: &Fields) -> EntryId {
    let id = fields.iter().find(|(field, _)| &**field == "id").map(|(_, value)| value.clone()).unwrap_or_default();
    EntryId::new(String::from_utf8(id.to_vec()).unwrap())
}
