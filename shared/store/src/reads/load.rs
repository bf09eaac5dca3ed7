//! The workers of a fleet, the slots that they have, and what is on its way to them: what limits of slots go by.

use std::collections::{BTreeMap, HashMap};

use redis::{FromRedisValue, RedisResult, Value};
use tickfleet_model::policy::Pause;

use crate::connection::question::Question;
use crate::keys::{GROUP, Queue};
use crate::reads::watch::nodes;
use crate::script::reply::{number_of, text_of};
use crate::verbs::recovery::noted;
use crate::{NodeView, Store, StoreError, worker_of};

/// What a fleet can carry out in a shard, and what it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FleetLoad {
    /// Slots of all workers that show signs of life.
    pub slots: u64,
    /// Slices that are out: workers hold them, or nobody has read them.
    pub out: u64,
    /// Slices that workers have ever read; none where Redis cannot tell since an entry was deleted.
    pub read: Option<u64>,
    /// Shard time, ms.
    pub now_ms: i64,
}

impl Store {
    /// Counts the slots of workers whose leases run, and the slices for them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn fleet_load(&self) -> Result<FleetLoad, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").cmd("HGET").arg(self.keys.key("meta")).arg("offset_ms");
        pipe.cmd("HGETALL").arg(self.keys.key("beats")).cmd("HGETALL").arg(self.keys.key("nodes"));
        for queue in Queue::of_workers() {
            let key = self.keys.key(queue.to_string());
            pipe.cmd("XINFO").arg("GROUPS").arg(&key).cmd("XLEN").arg(&key);
        }
        let found: Vec<RedisResult<Value>> = self.connection.pipeline(Question::FleetLoad, &pipe).await?;
        // What is not there yet counts nothing.
        let mut found = found.into_iter().map(|answer| answer.unwrap_or(Value::Nil));
        let mut next = || found.next().unwrap_or(Value::Nil);
        let time: Vec<i64> = read(next());
        let part = |at: usize| time.get(at).copied().unwrap_or(0);
        let (seconds, micros) = (part(0), part(1));
        let now_ms = seconds * 1_000 + micros / 1_000 + number_of(&next()).unwrap_or(0);
        let (beats, said): (HashMap<String, Value>, HashMap<String, Value>) = (read(next()), read(next()));
        let alive = nodes(&beats, &said, now_ms).into_iter().filter(|node| node.lease_left_ms > 0);
        let slots = alive.filter_map(|node| node.slots).map(|slots| slots.all as u64).sum();
        let queues: Vec<(u64, Option<u64>)> = Queue::of_workers().map(|_| queue(next(), &next())).collect();
        let out = queues.iter().map(|(out, _)| out).sum();
        Ok(FleetLoad { slots, out, read: queues.iter().map(|(_, read)| *read).sum(), now_ms })
    }
}

/// The workers of a shard.
#[derive(Debug, Clone, Default)]
pub struct ShardWorkers {
    /// Those that live, and those that were heard a short while ago: their consumers, by name.
    pub consumers: Vec<NodeView>,
    /// Who was drained, by the worker's name; some may be gone.
    pub drained: BTreeMap<String, Pause>,
    /// Shard time, ms.
    pub now_ms: i64,
}

impl Store {
    /// Reads the workers of the shard.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn workers(&self) -> Result<ShardWorkers, StoreError> {
        let now_ms = self.now_ms().await?;
        let mut pipe = redis::pipe();
        for key in ["beats", "nodes", "drains"] {
            pipe.cmd("HGETALL").arg(self.keys.key(key));
        }
        type Hash = HashMap<String, Value>;
        let (beats, said, drains): (Hash, Hash, Hash) = self.connection.pipeline(Question::Workers, &pipe).await?;
        let consumers = nodes(&beats, &said, now_ms).into_iter().filter(|node| worker_of(&node.name).is_some());
        let note = |value: &Value| noted(&text_of(value).unwrap_or_default());
        let drained = drains.iter().map(|(worker, value)| (worker.clone(), note(value))).collect();
        Ok(ShardWorkers { consumers: consumers.collect(), drained, now_ms })
    }
}

/// How many slices of a queue are out, and how many were ever read, from its groups and its length.
fn queue(groups: Value, length: &Value) -> (u64, Option<u64>) {
    let count = |value: &Value| number_of(value).map(|count| count.max(0).unsigned_abs());
    let groups: Vec<HashMap<String, Value>> = read(groups);
    let Some(group) = groups.iter().find(|group| group.get("name").and_then(text_of).as_deref() == Some(GROUP)) else {
        // Nobody has ever read from it.
        return (count(length).unwrap_or(0), Some(0));
    };
    let of = |name: &str| group.get(name).and_then(count);
    // At most too many by what has ended behind an old entry that is still held. Redis 7.0 may report a lag from before a
    // restart: no more slices are out than the stream has entries.
    let most = count(length).unwrap_or(0);
    let out = match (of("lag"), of("pending")) {
        (Some(lag), Some(pending)) => most.min(lag.saturating_add(pending)),
        _ => most,
    };
    (out, of("entries-read"))
}

/// What cannot be read counts as nothing.
fn read<T: FromRedisValue + Default>(value: Value) -> T {
    T::from_redis_value(value).unwrap_or_default()
}
