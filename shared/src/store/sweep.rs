//! A slow, bounded look at all turns under way: whether each of them will be looked at again (rule 3), and how old the
//! oldest is that waits on a lane.

use redis::Value;

use super::keys::TurnName;
use super::words::unexpected;
use super::{Store, StoreError};
use crate::model::{AgentId, TurnId};

/// Timers that one step looks at, about.
const TIMERS_PER_STEP: usize = 256;
/// Keys that one step looks at, about: most of a busy shard's keys are records of turns that have ended.
const KEYS_PER_STEP: usize = 512;

/// Turns that one transaction asks about: with four commands each, well below a script's time.
const TOGETHER_MAX: usize = 128;

/// Where the sweep is; the default is the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepAt {
    timers: u64,
    keys: u64,
}

/// What one step saw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// Where the next step goes on.
    pub next: SweepAt,
    /// Whether all timers have been seen since the last time that this was true.
    pub round_complete: bool,
    /// When the oldest turn was admitted that was seen waiting on a lane, ms of shard time.
    pub oldest_parked_ms: Option<i64>,
    /// Turns that have calls left, with no slice out, and that nothing will look at again.
    pub waiting_without_timer: Vec<TurnName>,
}

/// What decides whether a turn needs a timer.
struct Record {
    name: TurnName,
    agent: AgentId,
    fence: Option<String>,
    calls: i64,
    admitted: i64,
    done: i64,
    since_ms: i64,
}

impl Record {
    /// A slice is out: whoever holds it, or reap, brings the turn on.
    fn is_out(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| !fence.starts_with("s:"))
    }

    /// It waits on its lane for calls to be admitted; else it is parked for a try, or an ending is given out.
    fn is_on_lane(&self) -> bool {
        self.fence.is_none() && self.done == self.admitted && self.admitted < self.calls
    }
}

impl Store {
    /// Looks at some more turns under way, about as many as a script may in its time.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn sweep(&self, at: SweepAt) -> Result<Swept, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZSCAN").arg(self.keys.key("timers")).arg(at.timers).arg("COUNT").arg(TIMERS_PER_STEP);
        let records = self.keys.key("turn:");
        pipe.cmd("SCAN").arg(at.keys).arg("MATCH").arg(format!("{records}*")).arg("COUNT").arg(KEYS_PER_STEP);
        type Scanned = (u64, Vec<String>);
        let ((timers, due), (keys, found)): (Scanned, Scanned) = self.connection.pipeline("sweep", &pipe).await?;
        let timed = due.iter().step_by(2).filter_map(|member| TurnName::parse(member.strip_prefix("t:")?));
        let mut names: Vec<TurnName> =
            timed.chain(found.iter().filter_map(|key| TurnName::parse(key.strip_prefix(&records)?))).collect();
        names.sort_unstable();
        names.dedup();
        let waiting = self.waiting(&names).await?;
        let on_lanes = waiting.iter().filter(|record| record.is_on_lane());
        Ok(Swept {
            next: SweepAt { timers, keys },
            round_complete: timers == 0,
            oldest_parked_ms: on_lanes.map(|record| record.since_ms).min(),
            waiting_without_timer: self.without_timer(waiting).await?,
        })
    }

    /// Those of `names` that have calls left, no slice out, and that nothing will look at again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn waiting_without_timer(&self, names: &[TurnName]) -> Result<Vec<TurnName>, StoreError> {
        let waiting = self.waiting(names).await?;
        self.without_timer(waiting).await
    }

    /// The records of turns that have calls left and no slice out.
    async fn waiting(&self, names: &[TurnName]) -> Result<Vec<Record>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("HMGET").arg(self.keys.turn(name)).arg(&["ag", "f", "n", "ad", "dn", "ts"]);
        }
        let found: Vec<Vec<Option<String>>> = self.connection.pipeline("sweep", &pipe).await?;
        let records = names.iter().zip(found).filter_map(|(name, fields)| record(name.clone(), fields));
        Ok(records.filter(|record| !record.is_out()).collect())
    }

    /// Asks for each record and its timers in one transaction, so that no script runs in between.
    async fn without_timer(&self, waiting: Vec<Record>) -> Result<Vec<TurnName>, StoreError> {
        let mut lost = Vec::new();
        for some in waiting.chunks(TOGETHER_MAX) {
            lost.extend(self.some_without_timer(some).await?);
        }
        Ok(lost)
    }

    async fn some_without_timer(&self, waiting: &[Record]) -> Result<Vec<TurnName>, StoreError> {
        let timers = self.keys.key("timers");
        let mut pipe = redis::pipe();
        pipe.atomic();
        for Record { name, agent, .. } in waiting {
            let lane = format!("{}:{agent}", name.tenant);
            pipe.cmd("HMGET").arg(self.keys.turn(name)).arg(&["ag", "f", "n", "ad", "dn", "ts"]);
            pipe.cmd("ZSCORE").arg(&timers).arg(format!("t:{name}"));
            pipe.cmd("ZSCORE").arg(&timers).arg(format!("l:{lane}"));
            pipe.cmd("ZSCORE").arg(self.keys.key(format_args!("lane:{lane}"))).arg(TurnId::as_str(&name.turn));
        }
        let mut answers = self.connection.pipeline::<Vec<Value>>("sweep", &pipe).await?.into_iter();
        let mut there = || answers.next().unwrap_or(Value::Nil);
        let mut lost = Vec::new();
        for before in waiting {
            let (fields, own, lane, place) = (there(), there(), there(), there());
            let fields = redis::from_redis_value(fields).map_err(|_| unexpected("sweep", &Value::Nil))?;
            let (own, lane) = (own != Value::Nil, lane != Value::Nil && place != Value::Nil);
            let Some(now) = record(before.name.clone(), fields) else { continue };
            if !now.is_out() && !(own && (lane || !now.is_on_lane())) {
                lost.push(now.name);
            }
        }
        Ok(lost)
    }
}

/// A record as its fields say; none where the turn has ended, or has no calls left.
fn record(name: TurnName, fields: Vec<Option<String>>) -> Option<Record> {
    let [agent, fence, calls, admitted, done, since] = <[Option<String>; 6]>::try_from(fields).ok()?;
    let number = |text: Option<String>| text.and_then(|text| text.parse::<f64>().ok()).map(|number| number as i64);
    let record = Record {
        name,
        agent: AgentId::new(agent?).ok()?,
        fence,
        calls: number(calls)?,
        admitted: number(admitted)?,
        done: number(done).unwrap_or(0),
        since_ms: number(since).unwrap_or(0),
    };
    (record.done < record.calls).then_some(record)
}
