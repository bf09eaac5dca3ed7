//! Lists of tools for readers, see [`tickfleet_core::tools`]. Agents that may call the same tools share one list.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use tickfleet_core::tools::{
    AgentList, ListsMark, Publication, Publish, ToolListText, agent_key, list_key, mark_key, names_key,
};
use tickfleet_core::{Query, Value};
use tickfleet_model::{AgentId, TenantId};

use crate::{Store, StoreError};

/// The maximum number of agents or tool names.
const PER_TRANSACTION: usize = 250;
/// Without this pause, a fleet of thousands of agents would block the store.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

#[derive(Debug, Clone)]
pub struct ToolList {
    pub digest: String,
    pub json: Arc<str>,
}

#[derive(Debug, Clone, Default)]
pub struct ToolLists {
    pub lists: Vec<ToolList>,
    /// The last item is the digest of the agent's list.
    pub agents: Vec<(TenantId, AgentId, String)>,
    /// Agents without a list, because all lists together would exceed the byte limit.
    pub left_out: usize,
    /// By ID. If the ID belongs to one version of a tool, the name is `<name>@<version>`.
    pub names: BTreeMap<String, String>,
}

impl Store {
    /// `None` if the lists have to be written again.
    pub async fn tool_lists_mark(&self) -> Result<Option<ListsMark>, StoreError> {
        Ok(self.record_of::<ListsMark>(&mark_key()).await?.map(|stored| stored.value))
    }

    /// In the shared format. `None` if no worker has written a list, or if the list has expired.
    pub async fn tool_list(&self, tenant: &TenantId, agent: &AgentId) -> Result<Option<String>, StoreError> {
        let Some(stored) = self.record_of::<AgentList>(&agent_key(tenant, agent)).await? else { return Ok(None) };
        let list = self.record_of::<ToolListText>(&list_key(&stored.value.digest)).await?;
        Ok(list.map(|list| String::from(Box::<str>::from(list.value.0))))
    }

    pub async fn has_tool_lists(&self) -> Result<bool, StoreError> {
        // Read the names only: workers publish the names after the lists.
        Ok(self.record_of::<tickfleet_core::record::Present>(&names_key()).await?.is_some())
    }

    /// By ID; empty if no worker has published names, or if the names have expired.
    pub async fn tool_names(&self) -> Result<BTreeMap<String, String>, StoreError> {
        match self.query(Query::AllParts(names_key())).await? {
            Value::AllParts(parts) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                Ok(parts.into_iter().map(|(id, name)| (id.to_string(), text(&name))).collect())
            }
            _ => Ok(BTreeMap::new()),
        }
    }

    /// The lists expire after `ttl_ms`, and the fingerprint after `fresh_ms`. A worker then writes the lists again.
    /// After an error, some lists may have been written.
    pub async fn write_tool_lists(
        &self,
        fingerprint: &str,
        lists: &ToolLists,
        ttl_ms: u64,
        fresh_ms: u64,
    ) -> Result<(), StoreError> {
        let ttl_ms = ttl_ms.cast_signed();
        // Agents refer to their list, so write it first.
        for list in &lists.lists {
            let text = RawValue::from_string(list.json.to_string()).map(ToolListText);
            let text = text.map_err(|why| StoreError::Undecided(format!("tool list {}: {why}", list.digest)))?;
            self.publish(Publication::List { digest: &list.digest, text: &text }, ttl_ms).await?;
        }
        for agents in lists.agents.chunks(PER_TRANSACTION) {
            self.publish(Publication::Agents(agents), ttl_ms).await?;
        }
        let names: Vec<(&String, &String)> = lists.names.iter().collect();
        for names in names.chunks(PER_TRANSACTION) {
            let names = names.iter().map(|(id, name)| ((*id).clone(), (*name).clone())).collect();
            self.publish(Publication::Names(&names), ttl_ms).await?;
        }
        let mark = ListsMark { fingerprint: fingerprint.to_owned(), left_out: lists.left_out };
        self.publish(Publication::Mark(&mark), fresh_ms.cast_signed()).await
    }

    async fn publish(&self, content: Publication<'_>, ttl_ms: i64) -> Result<(), StoreError> {
        self.decide(Publish { content, ttl_ms }).await?;
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::StoreOptions;
    use crate::seam::memory::MemoryStore;

    #[tokio::test]
    async fn published_lists_and_names_read_back() {
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
        let tenant = TenantId::new("acme").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        assert_eq!(store.tool_list(&tenant, &agent).await.unwrap(), None);
        let json = r#"{"tools":[{"name":"look"}],"text":"look"}"#;
        let lists = ToolLists {
            lists: vec![ToolList { digest: "0a".into(), json: json.into() }],
            agents: vec![(tenant.clone(), agent.clone(), "0a".into())],
            left_out: 2,
            names: (0..600).map(|number| (format!("tool-{number}"), format!("name-{number}"))).collect(),
        };
        store.write_tool_lists("f", &lists, 60_000, 30_000).await.unwrap();
        assert_eq!(store.tool_list(&tenant, &agent).await.unwrap().as_deref(), Some(json));
        assert_eq!(store.tool_names().await.unwrap(), lists.names);
        let mark = ListsMark { fingerprint: "f".into(), left_out: 2 };
        assert_eq!(store.tool_lists_mark().await.unwrap(), Some(mark));
    }

    #[tokio::test]
    async fn only_one_worker_may_renew_a_stored_grant() {
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
        assert_eq!(store.load_grant("x").await.unwrap(), None);
        store.keep_grant("x", b"\x00sealed\xff", 60_000).await.unwrap();
        assert_eq!(store.load_grant("x").await.unwrap().as_deref(), Some(&b"\x00sealed\xff"[..]));
        assert!(store.may_renew_grant("x", 60_000).await.unwrap());
        assert!(!store.may_renew_grant("x", 60_000).await.unwrap());
    }
}
