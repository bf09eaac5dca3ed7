//! An agent's memories go.

use tickfleet_model::{AgentId, TenantId, limits};

use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Takes memories away from an agent, in bounded steps; answers how many there were.
    ///
    /// # Errors
    /// [`StoreError`]; some may be gone.
    pub async fn forget(&self, tenant: &TenantId, agent: &AgentId, ids: &[String]) -> Result<u64, StoreError> {
        let mut gone = 0;
        for some in ids.chunks(limits::BATCH_ENTRIES_MAX) {
            let mut args = self.args();
            args.text(tenant.as_str()).text(agent.as_str());
            for id in some {
                args.text(id.as_str());
            }
            let mut reply = self.ask(Verb::Forget, args).await?;
            reply.text()?;
            gone += reply.number()?.unsigned_abs();
        }
        Ok(gone)
    }
}
