use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::knowledge::Memory;
use tickfleet_model::{AgentId, TenantId, limits};

use crate::decision::{Context, Decision, Step};
use crate::record::Record;
use crate::settings::next_generation;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memories {
    /// Increases with every change.
    #[serde(rename = "g")]
    pub generation: u64,
    /// Oldest first.
    #[serde(rename = "m")]
    pub order: Vec<MemoryEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryEntry {
    /// Also the name of the part.
    #[serde(rename = "i")]
    pub id: Arc<str>,
    #[serde(rename = "b")]
    pub bytes: usize,
}

impl Record for Memories {
    const SCHEMA: u32 = 1;
}

impl Memories {
    fn bytes(&self) -> usize {
        self.order.iter().map(|memory| memory.bytes).sum()
    }

    fn make_room(&mut self, bytes: usize) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        while !self.order.is_empty()
            && (self.order.len() >= limits::MEMORIES_MAX || self.bytes() + bytes > limits::MEMORIES_BYTES_MAX)
        {
            gone.push(self.order.remove(0).id);
        }
        gone
    }
}

#[must_use]
pub fn memories_key(tenant: &TenantId, agent: &AgentId) -> RecordKey {
    RecordKey::new(format!("memories:{tenant}:{agent}"))
}

/// Adds a memory once for each ID.
#[derive(Debug, Clone)]
pub struct Remember {
    pub tenant: TenantId,
    pub agent: AgentId,
    pub memory: Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RememberResult {
    Done { forgotten: usize },
    Known,
    Pressure,
}

impl Decision for Remember {
    type Output = RememberResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(memories_key(&self.tenant, &self.agent))]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<RememberResult>, Undecided> {
        let key = memories_key(&self.tenant, &self.agent);
        let (mut transaction, stored) = context.update::<Memories>(view, &key)?;
        transaction.guard(Guard::MemoryAvailable);
        transaction.dedupe_record = Some(key.clone());
        let mut memories = stored.unwrap_or_default();
        let id: Arc<str> = self.memory.id.as_str().into();
        if memories.order.iter().any(|memory| memory.id == id) {
            return Ok(Step::Return(RememberResult::Known));
        }
        if context.failed(|conflict| *conflict == Conflict::Pressure) {
            return Ok(Step::Return(RememberResult::Pressure));
        }
        let text: Bytes = serde_json::to_vec(&self.memory).unwrap_or_default().into();
        let gone = memories.make_room(text.len());
        memories.order.push(MemoryEntry { id: id.clone(), bytes: text.len() });
        memories.generation = next_generation(memories.generation, context);
        let forgotten = gone.len();
        if forgotten > 0 {
            transaction.write(Write::DeleteParts(key.clone(), gone));
        }
        transaction.write(Write::PutPart(key.clone(), id, text)).put(&key, &memories);
        Ok(Step::Commit(transaction, RememberResult::Done { forgotten }))
    }
}

#[derive(Debug, Clone)]
pub struct Forget {
    pub tenant: TenantId,
    pub agent: AgentId,
    pub ids: Vec<String>,
}

impl Decision for Forget {
    type Output = usize;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(memories_key(&self.tenant, &self.agent))]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<usize>, Undecided> {
        let key = memories_key(&self.tenant, &self.agent);
        let Some(stored) = view.record::<Memories>(&key)? else { return Ok(Step::Return(0)) };
        let mut memories = stored.value;
        let is_meant = |memory: &MemoryEntry| self.ids.iter().any(|id| **id == *memory.id);
        let (gone, left): (Vec<_>, Vec<_>) = memories.order.into_iter().partition(is_meant);
        if gone.is_empty() {
            return Ok(Step::Return(0));
        }
        memories.order = left;
        memories.generation = next_generation(memories.generation, context);
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Version(key.clone(), stored.version));
        transaction.dedupe_record = Some(key.clone());
        let count = gone.len();
        let gone = gone.into_iter().map(|memory| memory.id).collect();
        transaction.write(Write::DeleteParts(key.clone(), gone)).put(&key, &memories);
        Ok(Step::Commit(transaction, count))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trial::Trial;

    fn owner() -> (TenantId, AgentId) {
        (TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap())
    }

    fn key() -> RecordKey {
        memories_key(&owner().0, &owner().1)
    }

    fn remember(id: &str, bytes: usize) -> Remember {
        let (tenant, agent) = owner();
        let memory = Memory { id: id.into(), text: "x".repeat(bytes), tags: vec![], at_ms: 0 };
        Remember { tenant, agent, memory }
    }

    fn forget(id: &str) -> Forget {
        let (tenant, agent) = owner();
        Forget { tenant, agent, ids: vec![id.into()] }
    }

    #[test]
    fn a_memory_is_stored_once() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&remember("a", 5)), RememberResult::Done { forgotten: 0 });
        shard.pressure = true;
        assert_eq!(shard.run(&remember("a", 5)), RememberResult::Known);
        assert_eq!(shard.run(&remember("b", 5)), RememberResult::Pressure);
        assert_eq!(shard.run(&forget("a")), 1);
        assert_eq!(shard.run(&forget("a")), 0);
        assert!(shard.parts[&key()].is_empty());
        assert_eq!(shard.record::<Memories>(&key()).unwrap().generation, 1_001);
    }

    #[test]
    fn a_concurrently_added_memory_survives_a_delete() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&remember("a", 5));
        let decided = shard.step(&forget("a"));
        shard.receipt(&remember("b", 5));
        assert_eq!(shard.finish(&forget("a"), decided).result, 1);
        assert_eq!(&*shard.record::<Memories>(&key()).unwrap().order[0].id, "b");
    }

    #[test]
    fn the_oldest_memories_are_evicted() {
        let mut shard = Trial::at(1_000);
        for number in 0..limits::MEMORIES_MAX {
            shard.receipt(&remember(&number.to_string(), 1));
        }
        assert_eq!(shard.run(&remember("new", 1)), RememberResult::Done { forgotten: 1 });
        assert!(!shard.parts[&key()].contains_key("0") && shard.parts[&key()].contains_key("1"));
        let large = remember("large", limits::MEMORIES_BYTES_MAX);
        assert_eq!(shard.run(&large), RememberResult::Done { forgotten: limits::MEMORIES_MAX });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn the_memory_order_matches_the_stored_parts(steps in prop::collection::vec((0..20u8, any::<bool>(), any::<bool>()), 1..30)) {
            let mut shard = Trial::at(1_000);
            let mut decided = None;
            for (id, forgets, keep_it) in steps {
                let next = remember(&id.to_string(), limits::MEMORIES_BYTES_MAX / 10);
                if forgets {
                    shard.receipt(&forget(&id.to_string()));
                } else if keep_it {
                    decided = Some((shard.step(&next), next));
                } else {
                    shard.receipt(&next);
                    if let Some((old, step)) = decided.take() {
                        shard.finish(&step, old);
                    }
                }
            }
            let memories: Memories = shard.record(&key()).unwrap_or_default();
            let parts = shard.parts.get(&key()).cloned().unwrap_or_default();
            prop_assert_eq!(memories.order.len(), parts.len());
            prop_assert!(memories.bytes() <= limits::MEMORIES_BYTES_MAX);
            for memory in &memories.order {
                prop_assert_eq!(parts.get(&memory.id).map(Bytes::len), Some(memory.bytes));
            }
        }
    }
}
