//! The calls of agents from the newest part of the audit log, in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tickfleet_model::{AgentId, Outcome, TenantId};
use tickfleet_protocol::AuditEntry;
use tickfleet_store::{Store, StoreError};
use tickfleet_tools::wording;

const PAGE: usize = 500;
/// The maximum number of entries in one read. Older entries are skipped.
const READ_MAX: usize = 5_000;
const HELD_MAX: usize = 20_000;
const OF_AGENT_MAX: usize = 500;
const TEXT_BYTES_MAX: usize = 1_500;
/// A search ignores these calls. Their arguments contain the question, so they would rank before the answer.
const LOOKUPS: [&str; 3] = ["search_my_memories", "search_atlasux_knowledge", "remember"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditedAction {
    pub(crate) turn: String,
    /// True for a whole task, false for a call.
    pub(crate) is_task: bool,
    /// As written in the log.
    pub(crate) at: String,
    pub(crate) text: String,
    pub(crate) brief: String,
}

#[derive(Debug, Default)]
pub(crate) struct AuditLogs {
    by_shard: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<ShardLog>>>>,
}

#[derive(Debug, Default)]
struct ShardLog {
    newest: Option<String>,
    by_agent: HashMap<(TenantId, AgentId), VecDeque<Arc<AuditedAction>>>,
    order: VecDeque<(TenantId, AgentId)>,
}

impl AuditLogs {
    /// Returns the agent's calls, newest first.
    pub(crate) async fn of_agent(
        &self,
        store: &Store,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Vec<Arc<AuditedAction>>, StoreError> {
        let log = Arc::clone(self.by_shard.lock().entry(store.shard()).or_default());
        let mut log = log.lock().await;
        log.read_on(store).await?;
        let actions = log.by_agent.get(&(tenant.clone(), agent.clone()));
        Ok(actions.map(|actions| actions.iter().rev().take(OF_AGENT_MAX).cloned().collect()).unwrap_or_default())
    }
}

impl ShardLog {
    async fn read_on(&mut self, store: &Store) -> Result<(), StoreError> {
        let mut before: Option<String> = None;
        let mut found: Vec<String> = Vec::new();
        let mut newest = None;
        let bound = |id: &Option<String>, end: &str| id.as_ref().map_or_else(|| end.to_owned(), |id| format!("({id}"));
        loop {
            let page = store.log_entries_back(&bound(&before, "+"), &bound(&self.newest, "-"), PAGE).await?;
            let count = page.len();
            newest = newest.or_else(|| page.first().map(|entry| entry.id.clone()));
            before = page.last().map(|entry| entry.id.clone());
            found.extend(page.into_iter().map(|entry| entry.text));
            if count < PAGE || found.len() >= READ_MAX {
                break;
            }
        }
        found.iter().rev().for_each(|json| self.add_entry(json));
        if newest.is_some() {
            self.newest = newest;
        }
        Ok(())
    }

    fn add_entry(&mut self, json: &str) {
        // The agent of an unreadable entry is unknown, so skip it.
        let Some(entry) = AuditEntry::read_call(json) else { return };
        let Ok(tenant) = TenantId::new(entry.tenant()) else { return };
        if LOOKUPS.contains(&&*entry.entity_id) {
            return;
        }
        let actor = AgentId::new(&*entry.actor_id).ok().filter(|_| entry.actor_type == "agent");
        let worker = entry.meta.agent.as_deref().and_then(|agent| AgentId::new(agent).ok());
        let action = |is_task| Arc::new(action(&entry, is_task));
        if let Some(actor) = actor.filter(|actor| Some(actor) != worker.as_ref()) {
            self.insert((tenant.clone(), actor), action(false));
        }
        if let Some(worker) = worker {
            self.insert((tenant, worker), action(true));
        }
    }

    fn insert(&mut self, owner: (TenantId, AgentId), action: Arc<AuditedAction>) {
        self.by_agent.entry(owner.clone()).or_default().push_back(action);
        self.order.push_back(owner);
        while self.order.len() > HELD_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            let actions = self.by_agent.get_mut(&oldest);
            if actions.is_some_and(|actions| actions.pop_front().is_some() && actions.is_empty()) {
                self.by_agent.remove(&oldest);
            }
        }
    }
}

fn action(entry: &AuditEntry<'_>, is_task: bool) -> AuditedAction {
    let meta = &entry.meta;
    let mut text = entry.message.to_string();
    let error = meta.error.as_ref().map(ToString::to_string);
    for (word, value) in [
        ("arguments", meta.arguments.map(RawValue::get)),
        ("result", meta.result.as_deref()),
        ("error", error.as_deref()),
    ] {
        if let Some(value) = value.filter(|value| !matches!(*value, "null" | "{}")) {
            text.push_str(&format!("\n{word}: {}", wording::cut(value, TEXT_BYTES_MAX / 2)));
        }
    }
    let arguments = meta.arguments.map_or("", RawValue::get);
    let tool = &entry.entity_id;
    AuditedAction {
        turn: meta.turn.to_string(),
        is_task,
        at: entry.timestamp.to_string(),
        text: wording::cut(&text, TEXT_BYTES_MAX),
        brief: format!("{tool} {}: {}", wording::cut(arguments, 200), meta.outcome.map_or("", Outcome::as_str)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn entry(tenant: &str, actor: (&str, &str), agent: Option<&str>, turn: usize) -> String {
        serde_json::json!({
            "timestamp": "2026-01-01T00:00:00.123Z", "level": "info", "action": "TOOL_CALL", "entity_id": "send",
            "actor_type": actor.0, "actor_id": actor.1, "tenant": tenant, "message": "called send: ok in 12 ms",
            "meta": {"turn": format!("t{turn}"), "agent": agent, "arguments": {"to": "x"}, "result": "{}",
                "error": null, "outcome": "ok"},
        })
        .to_string()
    }

    fn of(log: &ShardLog, tenant: &str, agent: &str) -> usize {
        let owner = (TenantId::new(tenant).unwrap(), AgentId::new(agent).unwrap());
        log.by_agent.get(&owner).map_or(0, VecDeque::len)
    }

    #[test]
    fn an_action_is_indexed_by_its_actor_and_its_agent() {
        let mut log = ShardLog::default();
        log.add_entry(&entry("acme", ("agent", "kelly"), None, 1));
        log.add_entry(&entry("acme", ("agent", "atlas"), Some("kelly"), 2));
        log.add_entry(&entry("acme", ("service", "producer"), Some("kelly"), 3));
        log.add_entry("{}");
        assert_eq!((of(&log, "acme", "kelly"), of(&log, "acme", "atlas"), of(&log, "other", "kelly")), (3, 1, 0));
        assert_eq!(of(&log, "acme", "producer"), 0);
    }

    #[test]
    fn the_log_evicts_its_oldest_entries_beyond_the_limit() {
        let mut log = ShardLog::default();
        for turn in 0..HELD_MAX + 10 {
            log.add_entry(&entry("acme", ("agent", if turn < 5 { "old" } else { "new" }), None, turn));
        }
        assert_eq!((of(&log, "acme", "old"), of(&log, "acme", "new")), (0, HELD_MAX));
        assert_eq!(log.by_agent.len(), 1);
    }
}
