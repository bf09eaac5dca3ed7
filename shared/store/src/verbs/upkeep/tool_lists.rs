//! Lists of tools for readers in any language. Agents that may call the same tools share one list: each agent has a key
//! that names its list, and each list a key with its tools, in one form for all dialects. All of them expire by
//! themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::connection::question::Question;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId};

/// Lists written with one round trip: their texts are large.
const LISTS_PER_ROUND: usize = 4;
/// Agents written with one round trip.
const AGENTS_PER_ROUND: usize = 250;
/// Between two rounds, so that a fleet of thousands of agents does not hold Redis up.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

/// The definitions of a set of tools.
#[derive(Debug, Clone)]
pub struct ToolList {
    /// What tells it from other lists: a digest of its tools.
    pub digest: String,
    /// The definitions in the shared form, JSON.
    pub json: Arc<str>,
}

/// The lists of a shard, and who has which.
#[derive(Debug, Clone, Default)]
pub struct ToolLists {
    /// Each list once.
    pub lists: Vec<ToolList>,
    /// Tenant, agent and the digest of the agent's list.
    pub agents: Vec<(TenantId, AgentId, String)>,
    /// Agents whose list does not fit.
    pub left_out: usize,
    /// The name of each tool by its id: `<name>@<version>` where the id is that of one version.
    pub names: BTreeMap<String, String>,
}

/// What the lists in Redis were made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolListsMark {
    /// The policy and tools that they were made of.
    pub fingerprint: String,
    /// Agents whose list did not fit.
    pub left_out: usize,
}

impl Store {
    /// Reads what the lists that are there were made of; none if they are due to be written again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tool_lists_mark(&self) -> Result<Option<ToolListsMark>, StoreError> {
        let mark: Option<String> =
            self.connection.query(Question::ToolLists, redis::cmd("GET").arg(self.keys.key("tools"))).await?;
        Ok(mark.map(|mark| {
            let (fingerprint, left_out) = mark.split_once(' ').unwrap_or((&mark, ""));
            ToolListsMark { fingerprint: fingerprint.to_owned(), left_out: left_out.parse().unwrap_or(0) }
        }))
    }

    /// Reads the list of one agent in the shared form; none where no worker has written one, or it has expired.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tool_list(&self, tenant: &TenantId, agent: &AgentId) -> Result<Option<String>, StoreError> {
        let mut named = redis::cmd("GET");
        named.arg(self.agent_key(tenant, agent));
        let Some(digest) = self.connection.query::<Option<String>>(Question::ToolLists, &named).await? else {
            return Ok(None);
        };
        self.connection.query(Question::ToolLists, redis::cmd("GET").arg(self.list_key(&digest))).await
    }

    /// Reads the names of tools by their ids, as workers have published them; empty if none has in the last half hour.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tool_names(&self) -> Result<BTreeMap<String, String>, StoreError> {
        self.connection.query(Question::ToolLists, redis::cmd("HGETALL").arg(self.names_key())).await
    }

    /// Writes `lists`, which expire after `ttl_ms`, and that they were made of `fingerprint`, which expires after
    /// `fresh_ms`: then some worker writes them again.
    ///
    /// # Errors
    /// [`StoreError`]; some lists may be written.
    pub async fn write_tool_lists(
        &self,
        fingerprint: &str,
        lists: &ToolLists,
        ttl_ms: u64,
        fresh_ms: u64,
    ) -> Result<(), StoreError> {
        // A list is there before an agent's key names it.
        for some in lists.lists.chunks(LISTS_PER_ROUND) {
            let mut pipe = redis::pipe();
            for list in some {
                pipe.cmd("SET").arg(self.list_key(&list.digest)).arg(&*list.json).arg("PX").arg(ttl_ms).ignore();
            }
            self.connection.pipeline::<()>(Question::ToolLists, &pipe).await?;
            tokio::time::sleep(PAUSE).await;
        }
        for some in lists.agents.chunks(AGENTS_PER_ROUND) {
            let mut pipe = redis::pipe();
            for (tenant, agent, digest) in some {
                pipe.cmd("SET").arg(self.agent_key(tenant, agent)).arg(digest).arg("PX").arg(ttl_ms).ignore();
            }
            self.connection.pipeline::<()>(Question::ToolLists, &pipe).await?;
            tokio::time::sleep(PAUSE).await;
        }
        if !lists.names.is_empty() {
            let mut pipe = redis::pipe();
            // Workers with other tools may publish theirs, too: nothing is removed before it expires.
            pipe.cmd("HSET").arg(self.names_key()).arg(&lists.names).ignore();
            pipe.cmd("PEXPIRE").arg(self.names_key()).arg(ttl_ms).ignore();
            self.connection.pipeline::<()>(Question::ToolLists, &pipe).await?;
        }
        let mut mark = redis::cmd("SET");
        mark.arg(self.keys.key("tools")).arg(format!("{fingerprint} {}", lists.left_out)).arg("PX").arg(fresh_ms);
        self.connection.query::<()>(Question::ToolLists, &mark).await
    }

    fn agent_key(&self, tenant: &TenantId, agent: &AgentId) -> String {
        self.keys.key(format_args!("tools:{tenant}:{agent}"))
    }

    fn names_key(&self) -> String {
        self.keys.key("tools:names")
    }

    /// No tenant has this name: `=` is no character of ids.
    fn list_key(&self, digest: &str) -> String {
        self.keys.key(format_args!("tools:=:{digest}"))
    }
}
