//! Lists of tools for readers in any language: one key for each agent and dialect, which ends by itself.

use crate::connection::question::Question;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, Dialect, TenantId};

/// Lists written with one round trip: their texts are large.
const LISTS_PER_ROUND: usize = 32;
/// Between two rounds, so that a fleet of thousands of agents does not hold Redis up.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

/// The tools that an agent may call, as a request to a model has them.
#[derive(Debug, Clone)]
pub struct ToolList {
    /// Whose agent.
    pub tenant: TenantId,
    /// The agent that may call the tools.
    pub agent: AgentId,
    /// The dialect in which they are defined.
    pub dialect: Dialect,
    /// The definitions, JSON.
    pub json: std::sync::Arc<str>,
}

impl Store {
    /// Reads what the lists that are there were made of; none if they are due to be written again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tool_lists_of(&self) -> Result<Option<String>, StoreError> {
        self.connection.query(Question::ToolLists, redis::cmd("GET").arg(self.keys.key("tools"))).await
    }

    /// Reads the list of one agent; none where nobody has written one, or it has ended.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tool_list(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        dialect: Dialect,
    ) -> Result<Option<String>, StoreError> {
        let key = self.keys.key(format_args!("tools:{tenant}:{agent}:{}", dialect.as_str()));
        self.connection.query(Question::ToolLists, redis::cmd("GET").arg(key)).await
    }

    /// Writes `lists`, which end after `ttl_ms`, and that they were made of `fingerprint`, which is forgotten after
    /// `fresh_ms`: whoever looks then writes them again.
    ///
    /// # Errors
    /// [`StoreError`]; some lists may be written.
    pub async fn write_tool_lists(
        &self,
        fingerprint: &str,
        lists: &[ToolList],
        ttl_ms: u64,
        fresh_ms: u64,
    ) -> Result<(), StoreError> {
        for some in lists.chunks(LISTS_PER_ROUND) {
            let mut pipe = redis::pipe();
            for list in some {
                let suffix = format!("tools:{}:{}:{}", list.tenant, list.agent, list.dialect.as_str());
                pipe.cmd("SET").arg(self.keys.key(suffix)).arg(&*list.json).arg("PX").arg(ttl_ms).ignore();
            }
            self.connection.pipeline::<()>(Question::ToolLists, &pipe).await?;
            // Nobody waits for lists, and turns do wait for Redis.
            tokio::time::sleep(PAUSE).await;
        }
        let mut mark = redis::cmd("SET");
        mark.arg(self.keys.key("tools")).arg(fingerprint).arg("PX").arg(fresh_ms);
        self.connection.query::<()>(Question::ToolLists, &mark).await
    }
}
