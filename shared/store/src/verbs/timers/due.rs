//! The timers that are due: lanes, turns, and what ends with a turn or task.

use crate::connection::question::Question;
use crate::keys::{Lane, TurnName};
use crate::{Store, StoreError};

/// Names of timers that are due.
#[derive(Debug, Default)]
pub struct Due {
    /// Lanes.
    pub lanes: Vec<Lane>,
    /// Turns and tasks.
    pub turns: Vec<TurnName>,
    /// Turns and tasks of which everything that they have begun is to end.
    pub cascades: Vec<TurnName>,
}

impl Due {
    /// The number of timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.len() + self.turns.len() + self.cascades.len()
    }

    /// True if nothing is due.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Store {
    /// Names of timers that are due, at most `count`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn due(&self, now_ms: i64, count: usize) -> Result<Due, StoreError> {
        let (mut due, mut odd) = (Due::default(), 0);
        loop {
            let mut command = redis::cmd("ZRANGEBYSCORE");
            command.arg(self.keys.key("timers")).arg("-inf").arg(now_ms).arg("LIMIT").arg(odd).arg(count);
            let names: Vec<Vec<u8>> = self.connection.query(Question::Due, &command).await?;
            for name in &names {
                let name = std::str::from_utf8(name).unwrap_or_default();
                if let Some(lane) = name.strip_prefix("l:").and_then(Lane::parse) {
                    due.lanes.push(lane);
                } else if let Some(turn) = name.strip_prefix("t:").and_then(TurnName::parse) {
                    due.turns.push(turn);
                } else if let Some(turn) = name.strip_prefix("c:").and_then(TurnName::parse) {
                    due.cascades.push(turn);
                } else {
                    odd += 1;
                }
            }
            // Names that nobody here can read (a foreign writer's, a later build's) stay first: what is due behind
            // them must not wait for them.
            if !due.is_empty() || names.len() < count {
                return Ok(due);
            }
        }
    }
}
