//! Calls that are refused for a while, because they came in a row too often.

use tickfleet_model::{AgentId, TaskId, TenantId};

use crate::script::reply::{Reply, text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// Whose calls are a row: an agent's, or those of one task of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowName {
    /// The tenant.
    pub tenant: TenantId,
    /// The agent.
    pub agent: AgentId,
    /// The task that its calls are made under, if they are.
    pub task: Option<TaskId>,
}

impl std::fmt::Display for RowName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.tenant, self.agent)?;
        self.task.as_ref().map_or(Ok(()), |task| write!(f, ":{task}"))
    }
}

/// A call in its row.
#[derive(Debug, Clone)]
pub struct RowCall {
    /// The row.
    pub row: RowName,
    /// The hash of its tool and arguments.
    pub hash: String,
}

impl Store {
    /// Until when calls are refused, ms of shard time; none for those that may run.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn brake(&self, calls: &[RowCall]) -> Result<Vec<Option<i64>>, StoreError> {
        let mut args = self.args();
        args.show(calls.len());
        for call in calls {
            args.show(&call.row).text(call.hash.as_str());
        }
        let mut reply = self.ask(Verb::Brake, args).await?;
        let refused = |value: redis::Value| {
            if text_of(&value).as_deref() == Some("FREE") {
                return Ok(None);
            }
            let mut reply = Reply::new(Verb::Brake.as_str(), value)?;
            match reply.text()?.as_str() {
                "REFUSED" => reply.number().map(Some),
                other => Err(unexpected(Verb::Brake.as_str(), &redis::Value::SimpleString(other.to_owned()))),
            }
        };
        reply.rest().into_iter().map(refused).collect()
    }
}
