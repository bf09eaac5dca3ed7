pub use tickfleet_core::knowledge::RememberResult;
use tickfleet_core::knowledge::{Forget, Remember};
use tickfleet_model::knowledge::Memory;
use tickfleet_model::{AgentId, TenantId};

use crate::{Store, StoreError};

impl Store {
    /// A memory with the same ID is added only once, so the caller can repeat the call after an error.
    pub async fn remember(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        memory: &Memory,
    ) -> Result<RememberResult, StoreError> {
        let tenant = tenant.clone();
        let agent = agent.clone();
        let memory = memory.clone();
        Ok(self.decide(Remember { tenant, agent, memory }).await?.result)
    }

    pub async fn forget(&self, tenant: &TenantId, agent: &AgentId, ids: &[String]) -> Result<u64, StoreError> {
        let forget = Forget { tenant: tenant.clone(), agent: agent.clone(), ids: ids.to_vec() };
        Ok(self.decide(forget).await?.result as u64)
    }
}
