//! The timers that are due: lanes and turns.

use crate::connection::question::Question;
use crate::keys::TurnName;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId};

impl Store {
    /// Names of timers that are due, at most `count`: lanes and turns. Also when the next one is, ms from now
    /// (none: there is no timer).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn due(
        &self,
        now_ms: i64,
        count: usize,
    ) -> Result<(Vec<(TenantId, AgentId)>, Vec<TurnName>), StoreError> {
        let (mut lanes, mut turns, mut odd) = (Vec::new(), Vec::new(), 0);
        loop {
            let mut command = redis::cmd("ZRANGEBYSCORE");
            command.arg(self.keys.key("timers")).arg("-inf").arg(now_ms).arg("LIMIT").arg(odd).arg(count);
            let names: Vec<String> = self.connection.query(Question::Due, &command).await?;
            for name in &names {
                if let Some(lane) = name.strip_prefix("l:").and_then(lane_of) {
                    lanes.push(lane);
                } else if let Some(turn) = name.strip_prefix("t:").and_then(TurnName::parse) {
                    turns.push(turn);
                } else {
                    odd += 1;
                }
            }
            // Names that nobody here can read (a foreign writer's, a later build's) stay first: what is due behind
            // them must not wait for them.
            if !lanes.is_empty() || !turns.is_empty() || names.len() < count {
                return Ok((lanes, turns));
            }
        }
    }
}

fn lane_of(name: &str) -> Option<(TenantId, AgentId)> {
    let (tenant, agent) = name.split_once(':')?;
    Some((TenantId::new(tenant).ok()?, AgentId::new(agent).ok()?))
}
