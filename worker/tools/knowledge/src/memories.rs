//! Agents' memories in a process. They are read again if the agent's stored generation has changed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tickfleet_model::knowledge::Memory;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{Store, StoreError};

use crate::lexicon::Lexicon;
use crate::words::words;

/// An approximate limit per process. The memories of the agents that searched most recently are kept.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct AgentMemories {
    generation: u64,
    /// Newest first. The lexicon has the same order.
    pub(crate) memories: Vec<Memory>,
    pub(crate) lexicon: Lexicon,
}

#[derive(Debug, Default)]
pub(crate) struct MemoryCaches {
    held: Mutex<MemoryCache>,
}

#[derive(Debug, Default)]
struct MemoryCache {
    of_agent: HashMap<(TenantId, AgentId), (Arc<AgentMemories>, u64)>,
    asked: u64,
}

impl AgentMemories {
    fn new(generation: u64, memories: Vec<Memory>) -> Self {
        let mut lexicon = Lexicon::default();
        for memory in &memories {
            let mut terms = words(&memory.text);
            terms.extend(memory.tags.iter().flat_map(|tag| words(tag)));
            lexicon.add(&terms);
        }
        Self { generation, memories, lexicon }
    }

    fn bytes(&self) -> usize {
        self.lexicon.bytes() + self.memories.iter().map(|memory| memory.text.len() + 256).sum::<usize>()
    }
}

impl MemoryCaches {
    /// Takes one request to Redis if nothing has changed, otherwise two.
    pub(crate) async fn of(
        &self,
        store: &Store,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Arc<AgentMemories>, StoreError> {
        // Read the generation first. If memories change afterwards, the next call sees a new generation.
        let generation = store.knowledge_state(tenant, Some(agent)).await?.memories;
        let owner = (tenant.clone(), agent.clone());
        if let Some(notes) = self.held.lock().get(&owner).filter(|notes| notes.generation == generation) {
            return Ok(notes);
        }
        let notes = Arc::new(AgentMemories::new(generation, store.memories(tenant, agent).await?));
        self.held.lock().insert(owner, Arc::clone(&notes));
        Ok(notes)
    }
}

impl MemoryCache {
    fn get(&mut self, owner: &(TenantId, AgentId)) -> Option<Arc<AgentMemories>> {
        self.asked += 1;
        let (notes, asked) = self.of_agent.get_mut(owner)?;
        *asked = self.asked;
        Some(Arc::clone(notes))
    }

    /// Without enough room, drops the memories of the agents that searched least recently.
    fn insert(&mut self, owner: (TenantId, AgentId), notes: Arc<AgentMemories>) {
        self.of_agent.insert(owner, (notes, self.asked));
        let mut bytes: usize = self.of_agent.values().map(|(notes, _)| notes.bytes()).sum();
        while bytes > HELD_BYTES_MAX && self.of_agent.len() > 1 {
            let oldest = self.of_agent.iter().min_by_key(|(_, (_, asked))| *asked).map(|(owner, _)| owner.clone());
            let Some((notes, _)) = oldest.and_then(|owner| self.of_agent.remove(&owner)) else { break };
            bytes = bytes.saturating_sub(notes.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_cache_evicts_the_least_recently_used_agent() {
        let owner = |agent: usize| (TenantId::new("acme").unwrap(), AgentId::new(format!("a{agent}")).unwrap());
        let memory = || Memory { id: "m".into(), text: "x".repeat(8 << 20), tags: Vec::new(), at_ms: 0 };
        let mut held = MemoryCache::default();
        for agent in 0..9 {
            held.get(&owner(0));
            let notes = AgentMemories { generation: 1, memories: vec![memory()], lexicon: Lexicon::default() };
            held.insert(owner(agent), Arc::new(notes));
        }
        assert_eq!(held.of_agent.len(), 7);
        assert!(held.get(&owner(0)).is_some() && held.get(&owner(8)).is_some());
        assert!(held.get(&owner(1)).is_none() && held.get(&owner(2)).is_none());
    }
}
