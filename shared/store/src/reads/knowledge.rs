//! Reads documents, passages and memories of agents.

use tickfleet_core::knowledge::{DocumentHeader, Documents, Memories, documents_key, memories_key, passages_key};
use tickfleet_core::{Query, Stored, Value};
use tickfleet_model::knowledge::{Document, Memory, Passages};
use tickfleet_model::{AgentId, TenantId};

use super::passages;
use crate::{Store, StoreError, TurnName};

/// If a generation is unchanged, the contents are unchanged, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnowledgeState {
    pub documents: u64,
    pub bytes: u64,
    pub memories: u64,
    pub memory_bytes: u64,
}

impl Store {
    pub async fn knowledge_state(
        &self,
        tenant: &TenantId,
        agent: Option<&AgentId>,
    ) -> Result<KnowledgeState, StoreError> {
        let documents_key = documents_key(tenant);
        let memories_key = agent.map(|agent| memories_key(tenant, agent));
        let queries: Vec<Query> =
            [&documents_key].into_iter().chain(&memories_key).map(|key| Query::Record(key.clone())).collect();
        let mut found = self.values(&queries).await?;
        let documents: Option<Stored<Documents>> = super::stored(&documents_key, found.next())?;
        let memories: Option<Stored<Memories>> = match &memories_key {
            Some(key) => super::stored(key, found.next())?,
            None => None,
        };
        let memory_bytes = |one: &Stored<Memories>| one.value.order.iter().map(|memory| memory.bytes as u64).sum();
        Ok(KnowledgeState {
            documents: documents.as_ref().map_or(0, |one| one.value.generation),
            bytes: documents.as_ref().map_or(0, |one| one.value.bytes),
            memories: memories.as_ref().map_or(0, |one| one.value.generation),
            memory_bytes: memories.as_ref().map_or(0, memory_bytes),
        })
    }

    /// Without the texts. An unreadable document is omitted.
    pub async fn documents(&self, tenant: &TenantId) -> Result<Vec<Document>, StoreError> {
        let Value::AllParts(parts) = self.query(Query::AllParts(documents_key(tenant))).await? else {
            return Ok(Vec::new());
        };
        let read = |(id, part): (std::sync::Arc<str>, bytes::Bytes)| {
            let header = DocumentHeader::read(&part)?;
            Some(Document { id: id.to_string(), ..header.document })
        };
        Ok(parts.into_iter().filter_map(read).collect())
    }

    /// In the order of `ids`; `None` for a removed document. Request few documents per call, because the passages of a
    /// document may have several megabytes.
    pub async fn passages(&self, tenant: &TenantId, ids: &[&str]) -> Result<Vec<Option<Passages>>, StoreError> {
        let names = ids.iter().map(|id| (*id).into()).collect();
        match self.query(Query::Parts(passages_key(tenant), names)).await? {
            Value::Parts(parts) => Ok(parts.into_iter().map(|part| passages::read(&part?)).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// The newest first.
    pub async fn memories(&self, tenant: &TenantId, agent: &AgentId) -> Result<Vec<Memory>, StoreError> {
        let Value::AllParts(parts) = self.query(Query::AllParts(memories_key(tenant, agent))).await? else {
            return Ok(Vec::new());
        };
        let read = |(id, json): (std::sync::Arc<str>, bytes::Bytes)| {
            let memory: Memory = serde_json::from_slice(&json).ok()?;
            Some(Memory { id: id.to_string(), ..memory })
        };
        let mut memories: Vec<Memory> = parts.into_iter().filter_map(read).collect();
        memories.sort_by(|a, b| (b.at_ms, &b.id).cmp(&(a.at_ms, &a.id)));
        Ok(memories)
    }

    pub async fn are_under_way(&self, names: &[TurnName]) -> Result<Vec<bool>, StoreError> {
        let queries: Vec<Query> = names.iter().map(|name| Query::Record(name.record())).collect();
        Ok(self.values(&queries).await?.map(|value| matches!(value, Value::Record(Some(_)))).collect())
    }
}
