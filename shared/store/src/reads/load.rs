//! The slots that a fleet's workers have, and how many calls have ended: what limits of slots go by.

use std::collections::HashMap;

use redis::{FromRedisValue, RedisResult, Value};

use crate::connection::question::Question;
use crate::reads::watch::nodes;
use crate::script::reply::number_of;
use crate::{Store, StoreError};

/// What a fleet can carry out in a shard, and what it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FleetLoad {
    /// Slots of all workers that show signs of life.
    pub slots: u64,
    /// Calls that ever had a result.
    pub calls: u64,
    /// Redis' clock, ms.
    pub clock_ms: i64,
}

impl Store {
    /// Counts the slots of workers whose leases run, and the calls that have ended.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn fleet_load(&self) -> Result<FleetLoad, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").cmd("HGET").arg(self.keys.key("meta")).arg("offset_ms");
        pipe.cmd("HGETALL").arg(self.keys.key("beats")).cmd("HGETALL").arg(self.keys.key("nodes"));
        pipe.cmd("XINFO").arg("STREAM").arg(self.keys.key("audit"));
        let found: Vec<RedisResult<Value>> = self.connection.pipeline(Question::FleetLoad, &pipe).await?;
        // What is not there yet counts nothing.
        let mut found = found.into_iter().map(|answer| answer.unwrap_or(Value::Nil));
        let mut next = || found.next().unwrap_or(Value::Nil);
        let time: Vec<i64> = read(next());
        let part = |at: usize| time.get(at).copied().unwrap_or(0);
        let (seconds, micros) = (part(0), part(1));
        let clock_ms = seconds * 1_000 + micros / 1_000;
        let offset_ms = number_of(&next()).unwrap_or(0);
        let (beats, said, audit): (HashMap<String, Value>, HashMap<String, Value>, _) =
            (read(next()), read(next()), read::<HashMap<String, Value>>(next()));
        let alive = nodes(&beats, &said, clock_ms + offset_ms).into_iter().filter(|node| node.lease_left_ms > 0);
        let slots = alive.filter_map(|node| node.slots).map(|slots| slots.all as u64).sum();
        let calls = audit.get("entries-added").and_then(number_of).unwrap_or(0);
        Ok(FleetLoad { slots, calls: calls.max(0).unsigned_abs(), clock_ms })
    }
}

/// What cannot be read counts as nothing.
fn read<T: FromRedisValue + Default>(value: Value) -> T {
    T::from_redis_value(value).unwrap_or_default()
}
