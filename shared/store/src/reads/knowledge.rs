//! What agents may look up, read in bounded steps: documents, passages, memories, and the newest of the audit log.

use std::collections::HashMap;

use redis::Value;
use tickfleet_model::knowledge::{Document, Memory, Passages};
use tickfleet_model::{AgentId, TenantId, limits};

use crate::connection::question::Question;
use crate::records::passages;
use crate::script::reply::{into_text, number_of};
use crate::{Store, StoreError, TurnName};

/// Fields that one step of a walk over documents looks at.
const WALK_COUNT: usize = 1_000;

/// What tells whether something has changed, and how much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnowledgeState {
    /// The generation of the tenant's documents; 0 where there never were any.
    pub documents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The generation of the agent's memories.
    pub memories: u64,
    /// Their bytes.
    pub memory_bytes: u64,
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its place in the log.
    pub id: String,
    /// JSON.
    pub json: String,
}

impl Store {
    /// Looks whether a tenant's documents, or an agent's memories, have changed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn knowledge_state(
        &self,
        tenant: &TenantId,
        agent: Option<&AgentId>,
    ) -> Result<KnowledgeState, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys.key(format_args!("kbs:{tenant}"))).arg("gen").arg("bytes");
        let agent = agent.map_or("", AgentId::as_str);
        command.arg(format!("gen:{agent}")).arg(format!("bytes:{agent}"));
        let found: Vec<Value> = self.connection.query(Question::Knowledge, &command).await?;
        let number = |at: usize| found.get(at).and_then(number_of).unwrap_or(0).unsigned_abs();
        Ok(KnowledgeState { documents: number(0), bytes: number(1), memories: number(2), memory_bytes: number(3) })
    }

    /// All documents of a tenant, without their texts. What changes meanwhile may be missed: the generation tells.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn documents(&self, tenant: &TenantId) -> Result<Vec<Document>, StoreError> {
        let key = self.keys.key(format_args!("kbd:{tenant}"));
        let (mut cursor, mut found) = (0_u64, HashMap::new());
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(&key).arg(cursor).arg("COUNT").arg(WALK_COUNT);
            let (next, fields): (u64, Vec<(String, Vec<u8>)>) =
                self.connection.query(Question::Knowledge, &command).await?;
            // A field that no build can read is no document; a walk may show one twice.
            let read = |(id, json): (String, Vec<u8>)| {
                let document: Document = serde_json::from_slice(&json).ok()?;
                Some((id.clone(), Document { id, ..document }))
            };
            found.extend(fields.into_iter().filter_map(read));
            cursor = next;
            // More than fit were written by another hand.
            if cursor == 0 || found.len() > 2 * limits::DOCUMENTS_MAX {
                return Ok(found.into_values().collect());
            }
        }
    }

    /// The passages of these documents, in their order; none for one that is gone. Ask for few at a time: each may have
    /// some megabytes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn passages(&self, tenant: &TenantId, ids: &[&str]) -> Result<Vec<Option<Passages>>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys.key(format_args!("kb:{tenant}"))).arg(ids);
        let found: Vec<Option<Vec<u8>>> = self.connection.query(Question::Knowledge, &command).await?;
        Ok(found.into_iter().map(|bytes| passages::read(&bytes?)).collect())
    }

    /// The memories of an agent, the newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn memories(&self, tenant: &TenantId, agent: &AgentId) -> Result<Vec<Memory>, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(self.keys.key(format_args!("memories:{tenant}:{agent}")));
        let found: HashMap<String, Vec<u8>> = self.connection.query(Question::Knowledge, &command).await?;
        let read = |(id, json): (String, Vec<u8>)| {
            let memory: Memory = serde_json::from_slice(&json).ok()?;
            Some(Memory { id, ..memory })
        };
        let mut memories: Vec<Memory> = found.into_iter().filter_map(read).collect();
        memories.sort_by(|a, b| (b.at_ms, &b.id).cmp(&(a.at_ms, &a.id)));
        Ok(memories)
    }

    /// A page of the audit log, the newest first: of what is older than the entry `before`, and newer than the entry
    /// `after`, where they are given.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn newest_audit(
        &self,
        before: Option<&str>,
        after: Option<&str>,
        count: usize,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let bound = |id: Option<&str>, open: &str| id.map_or_else(|| open.to_owned(), |id| format!("({id}"));
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.keys.key("audit")).arg(bound(before, "+")).arg(bound(after, "-")).arg("COUNT").arg(count);
        let page: Vec<(String, HashMap<String, Value>)> = self.connection.query(Question::AuditLog, &command).await?;
        // An entry without text counts for its place: whoever reads on goes by it.
        let entry = |(id, mut fields): (String, HashMap<String, Value>)| AuditEntry {
            id,
            json: fields.remove("audit").and_then(into_text).unwrap_or_default(),
        };
        Ok(page.into_iter().map(entry).collect())
    }

    /// Which of these turns and tasks have not ended.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn are_under_way(&self, names: &[TurnName]) -> Result<Vec<bool>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("EXISTS").arg(self.keys.turn(name));
        }
        self.connection.pipeline(Question::Look, &pipe).await
    }
}
