//! The view of a shard from outside: who works on it, what went wrong there. Reads only; for `doctor` and `explain`.

use std::collections::HashMap;

use redis::Value;

use crate::connection::pool::Pool;
use crate::connection::reader::{Entry, entry};
use crate::keys::{GROUP, Lane, streams};
use crate::reads::watch::{NodeView, nodes};
use crate::records::budgets::AgentBudget;
use crate::records::node::NodeSays;
use crate::records::schema::tenant as counters;
use crate::records::shard::{ShardMeta, is_set};
use crate::script::reply::{number_of, text_of};
use crate::{Keys, StoreError, TurnName};

/// Shards beyond the last one that are looked at for messages that went astray.
const STRAYS_LOOK_MAX: u32 = 16;

/// A shard's own account of itself.
#[derive(Debug, Clone, Default)]
pub struct ShardFacts {
    /// Shard time, ms since the epoch.
    pub now_ms: i64,
    /// True if any process has announced a policy here.
    pub used: bool,
    /// Streams that have no consumer group.
    pub groups_missing: Vec<String>,
    /// Generation of the policy in force.
    pub policy_generation: u64,
    /// Digest of the policy in force.
    pub policy_digest: String,
    /// The number of shards that the data was written with.
    pub shards: Option<u32>,
    /// The time by which shard time is ahead of the server's clock, ms.
    pub offset_ms: i64,
    /// The number of times that the server's clock stepped back, and by how much the last time, ms.
    pub steps: (u64, i64),
    /// True if new work is refused because memory is nearly full.
    pub pressure: bool,
    /// The processes that have shown a sign of life, and until when it counts, ms of shard time.
    pub beats: HashMap<String, i64>,
    /// Consumer → the policy that it said it decides by (the beginning of the digest), where it says so.
    pub policies: HashMap<String, String>,
    /// Tools that were switched off at run time.
    pub tools_off: Vec<String>,
    /// Consumers of the streams.
    pub consumers: Vec<ConsumerFacts>,
}

/// One consumer of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerFacts {
    /// The stream (`turns`, `ready:normal`).
    pub stream: String,
    /// Its name.
    pub name: String,
    /// Entries that it holds.
    pub pending: u64,
    /// The time since it last read or acknowledged, ms.
    pub idle_ms: i64,
}

/// An entry of the dead stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its own id in the dead stream.
    pub id: String,
    /// When it died, ms since the epoch.
    pub at_ms: i64,
    /// The stream that it came in on.
    pub from: String,
    /// The inbound entry that it was.
    pub entry: String,
    /// Why: a stable word.
    pub reason: String,
    /// Its tenant, where that could be read.
    pub tenant: String,
    /// The beginning of its message.
    pub raw: String,
}

/// The state that is remembered of an id that a producer gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// Its turn waits for a scheduler.
    Queued,
    /// Its turn was admitted.
    Admitted,
    /// Its turn has ended, or was refused.
    Ended,
}

/// The amounts that an agent and its tenant have used up. A counter means nothing once its end has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetFacts {
    /// Calls of the tick.
    pub tick_used: i64,
    /// When that tick ends, ms of shard time.
    pub tick_ends_ms: i64,
    /// Whether Redis has restarted, failed over or moved the shard since that tick began: no more is admitted in it.
    pub tick_is_closed: bool,
    /// Calls of the day.
    pub day_used: i64,
    /// When that day ends, ms of shard time.
    pub day_ends_ms: i64,
    /// Calls of all the tenant's agents in its day.
    pub tenant_day_used: i64,
    /// When the tenant's day ends, ms of shard time.
    pub tenant_day_ends_ms: i64,
    /// Turns before this one on its lane; none where the turn is not there.
    pub ahead_on_lane: Option<u64>,
    /// The counter of the limit that it waits for, where it does.
    pub counter: Option<CounterFacts>,
}

/// The state of one counter of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterFacts {
    /// What it has used: calls, or millionths.
    pub used: u64,
    /// When it begins anew, ms of shard time.
    pub ends_ms: i64,
    /// The places that calls hold, of a limit that counts those that are out at the same time.
    pub held: u64,
}

impl CounterFacts {
    /// Reads numbers of eight bytes each: what is used, and when that ends. What is missing is zero.
    pub(crate) fn unpack(packed: &[u8], held: u64) -> Self {
        let mut numbers =
            packed.chunks_exact(size_of::<f64>()).map(|bytes| bytes.try_into().map_or(0.0, f64::from_le_bytes));
        let mut next = || numbers.next().unwrap_or(0.0) as i64;
        Self { used: next().unsigned_abs(), ends_ms: next(), held }
    }
}

impl Pool {
    /// The number of shards that a shard's data was written with, as stored; none where no process has run yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn shard_count(&self, keys: &Keys) -> Result<Option<String>, StoreError> {
        self.at(keys)?.query("shard_count", redis::cmd("HGET").arg(keys.key("meta")).arg("shards")).await
    }

    /// Looks at a shard: its settings, its clock, its consumers and their heartbeats.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn shard(&self, keys: &Keys) -> Result<ShardFacts, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(keys.key("meta")).cmd("HGETALL").arg(keys.key("beats"));
        pipe.cmd("TIME").cmd("HGETALL").arg(keys.key("nodes"));
        type Found = (HashMap<String, Value>, HashMap<String, Value>, (i64, i64), HashMap<String, Value>);
        let (meta, beats, (seconds, micros), nodes): Found = self.at(keys)?.pipeline("shard", &pipe).await?;
        // A field that a hand has changed costs itself.
        let said = ShardMeta::read(|field| meta.get(field).and_then(text_of));
        let beats = beats.into_iter().filter_map(|(name, until)| Some((name, number_of(&until)?))).collect();
        let policy_of = |said: &str| NodeSays::read(said).policy;
        let mut facts = ShardFacts {
            now_ms: seconds * 1_000 + micros / 1_000 + said.offset_ms,
            used: said.policy_generation.is_some(),
            policy_generation: said.policy_generation.unwrap_or(0),
            policy_digest: said.policy_digest,
            shards: said.shards,
            offset_ms: said.offset_ms,
            steps: (said.steps, said.step_ms),
            pressure: said.pressure,
            beats,
            policies: nodes.into_iter().filter_map(|(name, said)| Some((name, policy_of(&text_of(&said)?)?))).collect(),
            tools_off: said.tools_off,
            ..ShardFacts::default()
        };
        for stream in streams() {
            match self.consumers(keys, &stream).await? {
                Some(consumers) => facts.consumers.extend(consumers),
                None => facts.groups_missing.push(stream),
            }
        }
        Ok(facts)
    }

    /// The consumers of a stream; none where it has no group.
    async fn consumers(&self, keys: &Keys, stream: &str) -> Result<Option<Vec<ConsumerFacts>>, StoreError> {
        let command = redis::cmd("XINFO").arg("CONSUMERS").arg(keys.key(stream)).arg(GROUP).to_owned();
        let found: Vec<HashMap<String, Value>> = match self.at(keys)?.query("consumers", &command).await {
            Ok(found) => found,
            Err(StoreError::StateLost(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let read = |fields: HashMap<String, Value>| ConsumerFacts {
            stream: stream.to_owned(),
            name: fields.get("name").and_then(text_of).unwrap_or_default(),
            pending: fields.get("pending").and_then(number_of).unwrap_or(0).unsigned_abs(),
            idle_ms: fields.get("idle").and_then(number_of).unwrap_or(0),
        };
        Ok(Some(found.into_iter().map(read).collect()))
    }

    /// Returns true if an inbound entry is still there: nobody has decided about it yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_inbound(&self, keys: &Keys, from: crate::Inbound, entry: &str) -> Result<bool, StoreError> {
        let command = redis::cmd("XRANGE").arg(keys.key(from.stream())).arg(entry).arg(entry).to_owned();
        match self.at(keys)?.query::<Vec<Value>>("inbound", &command).await {
            Ok(found) => Ok(!found.is_empty()),
            // An entry that has no entry id's shape is on no stream.
            Err(StoreError::Verb { source, .. }) if !source.is_io_error() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads what is remembered of an id that a producer gave; none if nothing is, or not any more.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn remembered(&self, keys: &Keys, name: &TurnName) -> Result<Option<Remembered>, StoreError> {
        let command = redis::cmd("GETRANGE").arg(keys.key(format_args!("id:{name}"))).arg(0).arg(0).to_owned();
        let found: String = self.at(keys)?.query("remembered", &command).await?;
        Ok(match found.as_str() {
            "q" => Some(Remembered::Queued),
            "a" => Some(Remembered::Admitted),
            "e" => Some(Remembered::Ended),
            _ => None,
        })
    }

    /// Reads what an agent and its tenant have used up, how many turns wait before `turn` on the lane where it is, and the
    /// counter that lane is of: `lane` is that of a limit, if it waits there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn budget(
        &self,
        keys: &Keys,
        agent: &str,
        name: &TurnName,
        lane: Option<&Lane>,
    ) -> Result<BudgetFacts, StoreError> {
        let (agent, tenant) = (format!("{}:{agent}", name.tenant), format!("tenant:{}", name.tenant));
        let mut pipe = redis::pipe();
        pipe.cmd("HGET").arg(keys.key("budgets")).arg(&agent);
        pipe.cmd("HMGET").arg(keys.key(tenant)).arg(&[counters::DAY_USED, counters::DAY_END]);
        match lane {
            Some(lane) => pipe.cmd("ZRANK").arg(keys.key(format_args!("lane:{lane}"))).arg(lane.member(name)),
            None => pipe.cmd("ZRANK").arg(keys.key(format_args!("lane:{agent}"))).arg(name.turn.as_str()),
        };
        let (limit, counter) = match lane {
            Some(Lane::Counter { limit, counter }) => (limit.as_str(), counter.as_str()),
            _ => ("", ""),
        };
        pipe.cmd("HGET").arg(keys.key(format_args!("counters:{limit}"))).arg(counter);
        pipe.cmd("ZCARD").arg(keys.key(format_args!("held:{limit}@{counter}")));
        pipe.cmd("HGET").arg(keys.key("meta")).arg("epoch_ms");
        type Found = (Option<Vec<u8>>, (Option<f64>, Option<f64>), Option<u64>, Option<Vec<u8>>, u64, Option<f64>);
        let (packed, (tenant_used, tenant_ends), ahead, counter, held, epoch_ms): Found =
            self.at(keys)?.pipeline("budget", &pipe).await?;
        let agent = AgentBudget::unpack(&packed.unwrap_or_default());
        // Lua may write a large number as a float.
        let whole = |number: Option<f64>| number.unwrap_or(0.0) as i64;
        Ok(BudgetFacts {
            tick_used: agent.tick_used,
            tick_ends_ms: agent.tick_ends_ms,
            tick_is_closed: agent.tick_began_ms < whole(epoch_ms),
            day_used: agent.day_used,
            day_ends_ms: agent.day_ends_ms,
            tenant_day_used: whole(tenant_used),
            tenant_day_ends_ms: whole(tenant_ends),
            ahead_on_lane: ahead,
            counter: lane.map(|_| CounterFacts::unpack(&counter.unwrap_or_default(), held)),
        })
    }

    /// Inbound streams of the next few shards beyond those that there are: what a producer that counts more shards
    /// appends there is read by nobody.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn strays(&self, namespace: &str, shards: u32) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        // On a cluster each of them may be elsewhere.
        for keys in (shards..shards.saturating_add(STRAYS_LOOK_MAX)).map(|shard| Keys::new(namespace, shard)) {
            let streams = [keys.key("turns"), keys.key("tasks")];
            let mut pipe = redis::pipe();
            for stream in &streams {
                pipe.cmd("EXISTS").arg(stream);
            }
            let there: Vec<bool> = self.at(&keys)?.pipeline("strays", &pipe).await?;
            found.extend(streams.into_iter().zip(there).filter(|(_, there)| *there).map(|(stream, _)| stream));
        }
        Ok(found)
    }

    /// The newest `count` entries of a shard's dead stream, newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn dead_letters(&self, keys: &Keys, count: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let command =
            redis::cmd("XREVRANGE").arg(keys.key("dead")).arg("+").arg("-").arg("COUNT").arg(count).to_owned();
        let found: Vec<Value> = self.at(keys)?.query("dead", &command).await?;
        Ok(found.into_iter().filter_map(entry).map(|e| dead_letter(&e)).collect())
    }

    /// Reads who shows signs of life on a shard, by name; those that are gone for long are left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn nodes(&self, keys: &Keys, now_ms: i64) -> Result<Vec<NodeView>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(keys.key("beats")).cmd("HGETALL").arg(keys.key("nodes"));
        let (beats, said): (HashMap<String, Value>, HashMap<String, Value>) =
            self.at(keys)?.pipeline("nodes", &pipe).await?;
        Ok(nodes(&beats, &said, now_ms))
    }

    /// Returns true if schedulers take nothing new in because memory is nearly full.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pressure(&self, keys: &Keys) -> Result<bool, StoreError> {
        let said: Option<String> =
            self.at(keys)?.query("pressure", redis::cmd("HGET").arg(keys.key("meta")).arg("pressure")).await?;
        Ok(said.as_deref().is_some_and(is_set))
    }

    /// Reads by how much shard time is ahead of the server's clock, ms.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn clock_offset_ms(&self, keys: &Keys) -> Result<i64, StoreError> {
        let said: Option<f64> =
            self.at(keys)?.query("clock", redis::cmd("HGET").arg(keys.key("meta")).arg("offset_ms")).await?;
        Ok(said.unwrap_or(0.0) as i64)
    }

    /// The runtimes that have read a queue of external tasks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn runtimes(&self, keys: &Keys, queue: &str) -> Result<Vec<ConsumerFacts>, StoreError> {
        Ok(self.consumers(keys, queue).await?.unwrap_or_default())
    }
}

pub(crate) fn dead_letter(entry: &Entry) -> DeadLetter {
    let text = |name: &str| String::from_utf8_lossy(entry.field(name).unwrap_or_default()).into_owned();
    DeadLetter {
        id: entry.id.clone(),
        at_ms: entry.id.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0),
        from: text("from"),
        entry: text("entry"),
        reason: text("reason"),
        tenant: text("tenant"),
        raw: text("raw"),
    }
}
