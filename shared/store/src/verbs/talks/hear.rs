//! Messages between agents: what an agent has not read.

use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId, limits};

/// A message of another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// When it came, ms of shard time.
    pub at_ms: i64,
    /// The message, as it was told.
    pub message: String,
}

impl Store {
    /// The messages that an agent has not read, the oldest first, `count` of them at most. They count as read from now on;
    /// asked again under the same name, the same ones are answered.
    ///
    /// # Errors
    /// [`StoreError`]; ask again under the same name.
    pub async fn hear(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        name: &str,
        count: usize,
    ) -> Result<Vec<Heard>, StoreError> {
        let mut args = self.args();
        args.show(format_args!("{tenant}:{agent}")).text(name).show(count).show(limits::MESSAGES_HEARD_MS);
        let mut reply = self.ask(Verb::Hear, args).await?;
        reply.number()?;
        let texts: Vec<String> = reply.rest().iter().filter_map(text_of).collect();
        let of = |pair: &[String]| {
            let [at, message] = pair else { return None };
            Some(Heard { at_ms: at.parse::<f64>().ok()? as i64, message: message.clone() })
        };
        Ok(texts.chunks(2).filter_map(of).collect())
    }
}
