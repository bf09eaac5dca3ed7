//! The timers that are due: lanes and turns.

use crate::connection::question::Question;
use crate::keys::{Lane, TurnName};
use crate::{Store, StoreError};

impl Store {
    /// Names of timers that are due, at most `count`: lanes and turns. Also when the next one is, ms from now
    /// (none: there is no timer).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn due(&self, now_ms: i64, count: usize) -> Result<(Vec<Lane>, Vec<TurnName>), StoreError> {
        let (mut lanes, mut turns, mut odd) = (Vec::new(), Vec::new(), 0);
        loop {
            let mut command = redis::cmd("ZRANGEBYSCORE");
            command.arg(self.keys.key("timers")).arg("-inf").arg(now_ms).arg("LIMIT").arg(odd).arg(count);
            let names: Vec<Vec<u8>> = self.connection.query(Question::Due, &command).await?;
            for name in &names {
                let name = std::str::from_utf8(name).unwrap_or_default();
                if let Some(lane) = name.strip_prefix("l:").and_then(Lane::parse) {
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
