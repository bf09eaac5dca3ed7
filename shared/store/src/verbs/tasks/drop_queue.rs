use tickfleet_core::task::external::DropExternalQueue;
use tickfleet_core::{Query, StreamKey, Value, keys};
use tickfleet_model::{AgentId, TenantId};

use crate::{Store, StoreError};

const READ_MAX: usize = 100_000;

impl Store {
    pub async fn drop_orphaned_queues(
        &self,
        is_configured: impl Fn(&TenantId, &AgentId) -> bool + Send,
    ) -> Result<usize, StoreError> {
        let queues = self.query(Query::First { set: keys::externals(), upto: None, count: READ_MAX }).await?;
        let Value::Members(queues) = queues else { return Ok(0) };
        let is_orphan = |queue: &str| owner(queue).is_some_and(|(tenant, agent)| !is_configured(&tenant, &agent));
        let orphans: Vec<DropExternalQueue> = queues
            .iter()
            .filter(|(queue, _)| is_orphan(queue))
            .map(|(queue, _)| DropExternalQueue { queue: StreamKey::new(queue) })
            .collect();
        let results = self.decide_all(&orphans).await?;
        Ok(results.into_iter().filter(|result| result.as_ref().is_ok_and(|receipt| receipt.result)).count())
    }
}

fn owner(queue: &str) -> Option<(TenantId, AgentId)> {
    let (tenant, agent) = queue.strip_prefix("external:")?.split_once(':')?;
    Some((TenantId::new(tenant).ok()?, AgentId::new(agent).ok()?))
}
