//! The amounts that wait, by place: for the gauges of a scrape, and for `doctor`.

use std::collections::HashMap;

use redis::{FromRedisValue, Pipeline, Value};

use crate::connection::question::Question;
use crate::keys::{GROUP, Queue, streams as stream_names};
use crate::reads::memory::{Memory, memory_of};
use crate::records::schema::{tenant as counters, turn as fields};
use crate::records::shard::is_set;
use crate::records::slice::entry_ms;
use crate::records::turn::whole;
use crate::script::reply::{number_of, text_of, unexpected};
use crate::{Store, StoreError};
use tickfleet_model::TenantId;

/// Tenants that one pipeline asks about.
const TENANTS_MAX: usize = 1_000;

/// The amounts that wait, by place. Ages are counted by Redis' own clock, which writes the ids of entries.
#[derive(Debug, Clone, Default)]
pub struct Backlog {
    /// Turns on the inbound stream that are not decided: nobody has read them, or a scheduler holds them.
    pub inbound: u64,
    /// Task messages, likewise.
    pub tasks: u64,
    /// Slices that no worker has read, and turns that wait for their tenant's share of the slots: more slots, and they go.
    pub ready: u64,
    /// Slices that no worker has read since an earlier holder of them died: each worker takes one of them at a time.
    pub suspect: u64,
    /// Slices that workers hold.
    pub running: u64,
    /// Turns that are parked for another try.
    pub delayed: u64,
    /// Turns that are parked until people have decided about their next call.
    pub approval: u64,
    /// Turns that wait on lanes, of the tenants that were asked about. One whose ending is just being written counts
    /// among them.
    pub parked: u64,
    /// Lanes and turns with a timer.
    pub timers: u64,
    /// Dead entries.
    pub dead: u64,
    /// Audit entries.
    pub audit: u64,
    /// Age of the oldest inbound turn or task message that is not decided, ms.
    pub oldest_inbound_ms: i64,
    /// Age of the oldest slice that no worker has read, ms.
    pub oldest_ready_ms: i64,
    /// Age of the oldest slice that waits for a worker after an earlier holder of it died, ms.
    pub oldest_suspect_ms: i64,
    /// Age of the oldest slice that is held, ms, from its dispatch on.
    pub oldest_pending_ms: i64,
    /// The time for which the turn has been parked that is parked for a try the longest, ms.
    pub oldest_delayed_ms: i64,
    /// The time for which people have been asked the longest, ms.
    pub oldest_approval_ms: i64,
    /// Age of the oldest dead entry, ms.
    pub oldest_dead_ms: i64,
    /// Timers that are due, and by how much the oldest, ms.
    pub late_ms: i64,
    /// Shard time, ms.
    pub now_ms: i64,
    /// Redis' memory.
    pub memory: Memory,
    /// True if new work is refused because memory is nearly full.
    pub pressure: bool,
}

/// The facts that are known of a stream but the age of its next entry.
struct StreamSeen {
    name: String,
    last_delivered: String,
    /// Entries that nobody has read; none where Redis cannot tell since an entry was deleted.
    lag: Option<u64>,
    length: u64,
    held: u64,
    oldest_held: Option<String>,
}

impl Store {
    /// Reads how much waits where, in two pipelines that read ends and counters only. Lanes are counted for `tenants`,
    /// for it is their counters that know; those of the limits `shares`, which share the slots out, count as ready.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn backlog(&self, tenants: &[TenantId], shares: &[&str]) -> Result<Backlog, StoreError> {
        let mut answers =
            self.connection.pipeline::<Vec<Value>>(Question::Backlog, &self.questions()).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let (clock_ms, (offset, pressure)) = (clock(next())?, read::<(Option<String>, Option<String>)>(next())?);
        let streams = stream_names().map(|name| seen(name, [next(), next(), next()])).collect::<Result<Vec<_>, _>>()?;
        let offset_ms = offset.as_deref().and_then(whole).unwrap_or(0);
        let mut backlog = Backlog {
            now_ms: clock_ms + offset_ms,
            pressure: pressure.as_deref().is_some_and(is_set),
            timers: read(next())?,
            audit: read(next())?,
            ..Backlog::default()
        };
        let due = read::<Vec<(String, f64)>>(next())?;
        backlog.late_ms = due.first().map_or(0, |(_, due)| (backlog.now_ms - *due as i64).max(0));
        backlog.dead = read(next())?;
        backlog.oldest_dead_ms = read::<Vec<(String, Value)>>(next())?.first().map_or(0, |(id, _)| age(id, clock_ms));
        backlog.delayed = read(next())?;
        let parked = read::<Vec<(String, f64)>>(next())?;
        backlog.oldest_delayed_ms = parked.first().map_or(0, |(_, since)| (backlog.now_ms - *since as i64).max(0));
        backlog.approval = read(next())?;
        let asked = read::<Vec<(String, f64)>>(next())?;
        backlog.oldest_approval_ms = asked.first().map_or(0, |(_, since)| (backlog.now_ms - *since as i64).max(0));
        backlog.memory = memory_of(&read::<String>(next())?);
        self.add_streams(&mut backlog, &streams, clock_ms).await?;
        let (waiting, lanes) = self.unfinished_and_not_out(tenants, shares).await?;
        let for_slots = lanes.iter().map(|(_, turns)| turns).sum::<u64>();
        backlog.parked = waiting.saturating_sub(backlog.delayed + backlog.approval + for_slots);
        backlog.ready += for_slots;
        let oldest_ms = self.oldest_on(&lanes).await?.map_or(0, |since_ms| backlog.now_ms - since_ms);
        backlog.oldest_ready_ms = backlog.oldest_ready_ms.max(oldest_ms);
        Ok(backlog)
    }

    fn questions(&self) -> Pipeline {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").cmd("HMGET").arg(self.keys.key("meta")).arg(&["offset_ms", "pressure"]);
        for name in stream_names() {
            let key = self.keys.key(&name);
            pipe.cmd("XINFO").arg("GROUPS").arg(&key).cmd("XPENDING").arg(&key).arg(GROUP).cmd("XLEN").arg(&key);
        }
        let (timers, dead, delayed) = (self.keys.key("timers"), self.keys.key("dead"), self.keys.key("delayed"));
        pipe.cmd("ZCARD").arg(&timers).cmd("XLEN").arg(self.keys.key("audit"));
        pipe.cmd("ZRANGE").arg(&timers).arg(0).arg(0).arg("WITHSCORES");
        pipe.cmd("XLEN").arg(&dead).cmd("XRANGE").arg(&dead).arg("-").arg("+").arg("COUNT").arg(1);
        pipe.cmd("ZCARD").arg(&delayed).cmd("ZRANGE").arg(&delayed).arg(0).arg(0).arg("WITHSCORES");
        let asked = self.keys.key("asked");
        pipe.cmd("ZCARD").arg(&asked).cmd("ZRANGE").arg(&asked).arg(0).arg(0).arg("WITHSCORES");
        pipe.cmd("INFO").arg("memory");
        pipe
    }

    /// Adds what the streams hold, with the age of what nobody has read.
    async fn add_streams(
        &self,
        backlog: &mut Backlog,
        streams: &[StreamSeen],
        clock_ms: i64,
    ) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        for stream in streams {
            let from = format!("({}", stream.last_delivered);
            pipe.cmd("XRANGE").arg(self.keys.key(&stream.name)).arg(from).arg("+").arg("COUNT").arg(1);
        }
        let next: Vec<Vec<(String, Value)>> = self.connection.pipeline(Question::Backlog, &pipe).await?;
        for (stream, next) in streams.iter().zip(next) {
            let next = next.first().map(|(id, _)| id.as_str());
            let waiting = stream.waiting(next.is_some());
            let waiting_ms = next.map_or(0, |id| age(id, clock_ms));
            let held_ms = stream.oldest_held.as_deref().map_or(0, |id| age(id, clock_ms));
            match stream.name.as_str() {
                "turns" | "tasks" => {
                    let count = if stream.name == "turns" { &mut backlog.inbound } else { &mut backlog.tasks };
                    *count += waiting + stream.held;
                    backlog.oldest_inbound_ms = backlog.oldest_inbound_ms.max(waiting_ms).max(held_ms);
                }
                name => {
                    let (count, oldest_ms) = match Queue::parse(name) {
                        Some(Queue::Suspect(_)) => (&mut backlog.suspect, &mut backlog.oldest_suspect_ms),
                        _ => (&mut backlog.ready, &mut backlog.oldest_ready_ms),
                    };
                    *count += waiting;
                    *oldest_ms = (*oldest_ms).max(waiting_ms);
                    backlog.running += stream.held;
                    backlog.oldest_pending_ms = backlog.oldest_pending_ms.max(held_ms);
                }
            }
        }
        Ok(())
    }

    /// Turns and tasks of these tenants that have not ended and have no slice out; and the lanes on which some of them wait
    /// for a share of the slots, each with how many do.
    async fn unfinished_and_not_out(
        &self,
        tenants: &[TenantId],
        shares: &[&str],
    ) -> Result<(u64, Vec<(String, u64)>), StoreError> {
        let (mut waiting, mut for_slots) = (0, Vec::new());
        for some in tenants.chunks(TENANTS_MAX) {
            let mut pipe = redis::pipe();
            for tenant in some {
                let counters = [counters::UNFINISHED, counters::OUT];
                pipe.cmd("HMGET").arg(self.keys.key(format_args!("tenant:{tenant}"))).arg(&counters);
                for share in shares {
                    pipe.cmd("ZCARD").arg(self.keys.key(format_args!("lane:{share}@{tenant}")));
                }
            }
            let answers: Vec<Value> = self.connection.pipeline(Question::Backlog, &pipe).await?;
            for (tenant, of_tenant) in some.iter().zip(answers.chunks(1 + shares.len())) {
                let Some((counters, lanes)) = of_tenant.split_first() else { continue };
                let (unfinished, out): (Option<f64>, Option<f64>) = read(counters.clone())?;
                waiting += (unfinished.unwrap_or(0.0) - out.unwrap_or(0.0)).max(0.0) as u64;
                let lane = |share: &&str| self.keys.key(format_args!("lane:{share}@{tenant}"));
                let turns = lanes.iter().map(|turns| number_of(turns).unwrap_or(0).max(0).unsigned_abs());
                for_slots.extend(shares.iter().map(lane).zip(turns).filter(|(_, turns)| *turns > 0));
            }
        }
        Ok((waiting, for_slots))
    }

    /// Since when the oldest of the turns at the heads of these lanes has been admitted, ms of shard time.
    async fn oldest_on(&self, lanes: &[(String, u64)]) -> Result<Option<i64>, StoreError> {
        let mut oldest: Option<i64> = None;
        for some in lanes.chunks(TENANTS_MAX) {
            let mut pipe = redis::pipe();
            for (lane, _) in some {
                pipe.cmd("ZRANGE").arg(lane).arg(0).arg(0);
            }
            let heads: Vec<Vec<String>> = self.connection.pipeline(Question::Backlog, &pipe).await?;
            if heads.iter().all(Vec::is_empty) {
                continue;
            }
            let mut pipe = redis::pipe();
            for turn in heads.iter().flatten() {
                pipe.cmd("HGET").arg(self.keys.key(format_args!("turn:{turn}"))).arg(fields::ADMITTED_MS);
            }
            let since: Vec<Option<String>> = self.connection.pipeline(Question::Backlog, &pipe).await?;
            // One that has gone out since then has no record, or will be counted where it is.
            let since = since.iter().filter_map(|since| whole(since.as_deref()?));
            oldest = oldest.into_iter().chain(since).min();
        }
        Ok(oldest)
    }
}

impl StreamSeen {
    /// Entries that nobody has read.
    fn waiting(&self, any: bool) -> u64 {
        unread(self.lag, self.length, self.held, any)
    }
}

/// Entries of a stream that nobody has read: `any` says whether there is one. Redis' own count, `lag`, is absent after an
/// entry was deleted, and too large on Redis 7.0 after a restart or a failover. So no more are unread than are neither held
/// nor known to be read: at most too many by what was read behind an old entry that is still held.
pub(super) fn unread(lag: Option<u64>, length: u64, held: u64, any: bool) -> u64 {
    let most = length.saturating_sub(held).max(1);
    if any { lag.unwrap_or(most).clamp(1, most) } else { 0 }
}

/// One stream from its groups, its pending entries and its length.
fn seen(name: String, [groups, pending, length]: [Value; 3]) -> Result<StreamSeen, StoreError> {
    let groups: Vec<HashMap<String, Value>> = read(groups)?;
    // Others may have groups of their own there.
    let group = groups.iter().find(|group| group.get("name").and_then(text_of).as_deref() == Some(GROUP));
    let Value::Array(pending) = pending else { return Err(unexpected("backlog", &pending)) };
    Ok(StreamSeen {
        name,
        last_delivered: group.and_then(|g| g.get("last-delivered-id")).and_then(text_of).unwrap_or_default(),
        lag: group.and_then(|g| g.get("lag")).and_then(number_of).map(i64::unsigned_abs),
        length: read(length)?,
        held: pending.first().and_then(number_of).unwrap_or(0).unsigned_abs(),
        oldest_held: pending.get(1).and_then(text_of),
    })
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    let shown = format!("{value:?}");
    T::from_redis_value(value).map_err(|_| unexpected("backlog", &Value::SimpleString(shown)))
}

fn clock(time: Value) -> Result<i64, StoreError> {
    let (seconds, micros): (i64, i64) = read(time)?;
    Ok(seconds * 1_000 + micros / 1_000)
}

fn age(id: &str, clock_ms: i64) -> i64 {
    (clock_ms - entry_ms(id).unwrap_or(clock_ms)).max(0)
}
