//! An agent's memories grow.

use tickfleet_model::knowledge::Memory;
use tickfleet_model::{AgentId, TenantId, limits};

use crate::script::reply::unexpected;
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// What became of a memory that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKept {
    /// It is there.
    Ok {
        /// How many older ones had to go.
        forgotten: u64,
    },
    /// It was there already.
    Known,
    /// Redis' memory is short.
    Pressure,
}

impl Store {
    /// Adds a memory to those of an agent; one of the same id is there once.
    ///
    /// # Errors
    /// [`StoreError`]; whether it is there is unknown then, and it may be added again.
    pub async fn remember(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        memory: &Memory,
    ) -> Result<MemoryKept, StoreError> {
        let mut args = self.args();
        args.text(tenant.as_str()).text(agent.as_str()).text(memory.id.as_str());
        args.text(serde_json::to_vec(memory).unwrap_or_default());
        args.show(limits::MEMORIES_MAX).show(limits::MEMORIES_BYTES_MAX);
        match self.ask(Verb::Remember, args).await {
            Ok(mut reply) => match reply.text()?.as_str() {
                "OK" => Ok(MemoryKept::Ok { forgotten: reply.number()?.unsigned_abs() }),
                "KNOWN" => Ok(MemoryKept::Known),
                "PRESSURE" => Ok(MemoryKept::Pressure),
                other => Err(unexpected("remember", &redis::Value::SimpleString(other.to_owned()))),
            },
            Err(error) if error.is_out_of_memory() => Ok(MemoryKept::Pressure),
            Err(error) => Err(error),
        }
    }
}
