//! A slow, bounded look at all turns under way: whether each of them will be looked at again (rule 3), whether what is
//! out is with somebody or on its queue (rule 21), and how old the oldest is that waits on a lane.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use crate::connection::question::Question;
use crate::keys::{GROUP, Lane, Queue, TurnName};
use crate::records::schema::{slice, turn};
use crate::records::slice::entry_ms;
use crate::records::turn::{is_ending, paid_of, whole};
use crate::script::reply::text_of;
use crate::{Store, StoreError};
use tickfleet_model::AgentId;

/// Timers that one command looks at, about. Of a table that has lost most of what was in it, Redis looks at ten times as many
/// places, and at each in two tables while it makes a smaller one: with four times as many, a command takes 2 to 4 ms then.
const TIMERS_PER_COMMAND: usize = 64;
/// Keys that one command looks at, about: most of a busy shard's keys are records of turns that have ended.
const KEYS_PER_COMMAND: usize = 128;
/// Such commands of one step, of either kind.
const COMMANDS_PER_STEP: usize = 4;

/// The fields that are read of a record.
const FIELDS: &[&str] = &[
    turn::AGENT,
    turn::FENCE,
    turn::CALLS,
    turn::ADMITTED,
    turn::DONE,
    turn::ADMITTED_MS,
    turn::QUEUE,
    turn::CRASHES,
    turn::LANE,
    turn::PAID,
];
/// Turns that one pipeline asks about: with a few commands each, well below a script's time.
const TOGETHER_MAX: usize = 128;

/// The place where the sweep is; the default is the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepAt {
    timers: u64,
    keys: u64,
}

/// The findings of one step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// The place where the next step goes on.
    pub next: SweepAt,
    /// True if all timers have been seen since the last time that this was true.
    pub round_complete: bool,
    /// When the oldest turn was admitted that was seen waiting on a lane, ms of shard time.
    pub oldest_parked_ms: Option<i64>,
    /// Turns that have calls left, with no slice out, and that nothing will look at again.
    pub waiting_without_timer: Vec<TurnName>,
    /// Turns whose slice seems to be with nobody and on no queue, or out without a timer of their own.
    pub adrift: Vec<TurnName>,
}

/// The parts of a record that decide whether a turn needs a timer.
struct Record {
    name: TurnName,
    agent: AgentId,
    /// The queues where its slice may be, if one is out: a suspect's that an older build took back is on its turn's own
    /// queue.
    queues: Vec<String>,
    fence: Option<String>,
    /// The lane of a limit's counter that it waits on.
    lane: Option<String>,
    calls: i64,
    admitted: i64,
    done: i64,
    /// Up to which position calls gave their places of limits back, which are on a lane once they need them again.
    paid: i64,
    since_ms: i64,
}

impl Record {
    /// A slice is out: whoever holds it, or reap, brings the turn on.
    fn is_out(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| !is_ending(fence))
    }

    /// The queues of workers that its slice may be on. An external task's is a runtime's: its timer looks after it.
    fn worker_queues(&self) -> &[String] {
        if self.queues.iter().any(|queue| queue.starts_with("ready:")) { &self.queues } else { &[] }
    }

    /// It waits on its lane for calls to be admitted; else it is parked for a try, or an ending is given out.
    fn is_on_lane(&self) -> bool {
        let waits_elsewhere = self.paid > self.done && self.lane.is_none();
        self.fence.is_none() && self.done >= self.admitted && self.done < self.calls && !waits_elsewhere
    }
}

impl Store {
    /// Looks at some more turns under way, about as many as a script may in its time.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn sweep(&self, at: SweepAt) -> Result<Swept, StoreError> {
        let (next, names) = self.under_way(at).await?;
        let (out, waiting): (Vec<_>, Vec<_>) = self.records(&names).await?.into_iter().partition(Record::is_out);
        let on_lanes = waiting.iter().filter(|record| record.is_on_lane());
        Ok(Swept {
            next,
            round_complete: next.timers == 0,
            oldest_parked_ms: on_lanes.map(|record| record.since_ms).min(),
            waiting_without_timer: self.without_timer(waiting).await?,
            adrift: self.adrift(&out).await?,
        })
    }

    /// Some more names of turns that have a timer or a record, and where to go on.
    async fn under_way(&self, mut at: SweepAt) -> Result<(SweepAt, Vec<TurnName>), StoreError> {
        let (timers, records) = (self.keys.key("timers"), self.keys.key("turn:"));
        let (mut names, mut timers_left, mut keys_left) = (Vec::new(), true, true);
        for _ in 0..COMMANDS_PER_STEP {
            let mut pipe = redis::pipe();
            if timers_left {
                pipe.cmd("ZSCAN").arg(&timers).arg(at.timers).arg("COUNT").arg(TIMERS_PER_COMMAND);
            }
            if keys_left {
                let scan = pipe.cmd("SCAN").arg(at.keys);
                scan.arg("MATCH").arg(format!("{records}*")).arg("COUNT").arg(KEYS_PER_COMMAND);
            }
            let scanned: Vec<(u64, Vec<String>)> = self.connection.pipeline(Question::Sweep, &pipe).await?;
            let mut scanned = scanned.into_iter();
            if timers_left && let Some((next, due)) = scanned.next() {
                let members = due.iter().step_by(2).filter_map(|member| member.strip_prefix("t:"));
                names.extend(members.filter_map(TurnName::parse));
                (at.timers, timers_left) = (next, next != 0);
            }
            if keys_left && let Some((next, found)) = scanned.next() {
                names.extend(found.iter().filter_map(|key| TurnName::parse(key.strip_prefix(&records)?)));
                (at.keys, keys_left) = (next, next != 0);
            }
            if !timers_left && !keys_left {
                break;
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok((at, names))
    }

    /// Those of `out` that have no timer, or whose entry nobody holds, and that is not waiting to be read either. An entry
    /// was read, where the group's last is not before it, and is gone, where its stream begins after it.
    async fn adrift(&self, out: &[Record]) -> Result<Vec<TurnName>, StoreError> {
        let queues: BTreeSet<&str> = out.iter().flat_map(Record::worker_queues).map(String::as_str).collect();
        let (mut pipe, timers) = (redis::pipe(), self.keys.key("timers"));
        for record in out {
            let fence = record.fence.as_deref().unwrap_or_default();
            pipe.cmd("ZSCORE").arg(&timers).arg(format!("t:{}", record.name));
            for queue in record.worker_queues() {
                pipe.cmd("XPENDING").arg(self.keys.key(queue)).arg(GROUP).arg(fence).arg(fence).arg(1);
            }
        }
        for queue in &queues {
            let key = self.keys.key(queue);
            pipe.cmd("XINFO").arg("GROUPS").arg(&key);
            pipe.cmd("XRANGE").arg(&key).arg("-").arg("+").arg("COUNT").arg(1);
        }
        if out.is_empty() {
            return Ok(Vec::new());
        }
        let mut answers = self.connection.answers(Question::Sweep, &pipe).await?.into_iter();
        let mut next = || answers.next().and_then(Result::ok).unwrap_or(Value::Nil);
        let mut seen = Vec::with_capacity(out.len());
        for record in out {
            let timed = next() != Value::Nil;
            let held: Vec<bool> = record.worker_queues().iter().map(|_| is_some(&next())).collect();
            seen.push((record, timed, held));
        }
        let ends: BTreeMap<&str, (String, String)> =
            queues.into_iter().map(|queue| (queue, (last_delivered(next()), first_of(next())))).collect();
        let (mut adrift, mut doubtful) = (Vec::new(), Vec::new());
        for (record, timed, held) in seen {
            let fence = record.fence.as_deref().unwrap_or_default();
            let waits = record.worker_queues().iter().any(|queue| {
                let (last, first) = &ends[queue.as_str()];
                after(fence, last) && !first.is_empty() && !after(first, fence)
            });
            match held.len() {
                _ if !timed => adrift.push(record),
                0 => {}
                1 if held[0] || waits => {}
                1 => adrift.push(record),
                // Two queues may have entries of one id, and the entries around it on one say nothing of the other.
                _ => doubtful.push((record, held)),
            }
        }
        adrift.extend(self.waiting_on_no_queue(doubtful, &ends).await?);
        self.still_out(adrift).await
    }

    /// Those of a few records, with whether somebody holds an entry of that id on each of their queues, whose own entry is
    /// on none, or was read off its queue, as `ends` says, and is held by nobody.
    async fn waiting_on_no_queue<'a>(
        &self,
        records: Vec<(&'a Record, Vec<bool>)>,
        ends: &BTreeMap<&str, (String, String)>,
    ) -> Result<Vec<&'a Record>, StoreError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for (record, _) in &records {
            let fence = record.fence.as_deref().unwrap_or_default();
            for queue in &record.queues {
                pipe.cmd("XRANGE").arg(self.keys.key(queue)).arg(fence).arg(fence);
            }
        }
        let mut answers = self.connection.answers(Question::Sweep, &pipe).await?.into_iter();
        let mut is_there = |record: &Record, (queue, held): (&String, &bool)| {
            let there = answers.next().and_then(Result::ok).is_some_and(|found| is_slice_of(&record.name, found));
            let fence = record.fence.as_deref().unwrap_or_default();
            there && (*held || ends.get(queue.as_str()).is_none_or(|(last, _)| after(fence, last)))
        };
        let mut adrift = Vec::new();
        for (record, held) in records {
            // Every answer is taken, so that each queue gets its own.
            let places = record.queues.iter().zip(&held).filter(|place| is_there(record, *place)).count();
            if places == 0 {
                adrift.push(record);
            }
        }
        Ok(adrift)
    }

    /// Those that are out under the same fence even now. One that ended between two looks has no timer any more, and
    /// needs none.
    async fn still_out(&self, seen: Vec<&Record>) -> Result<Vec<TurnName>, StoreError> {
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for record in &seen {
            pipe.cmd("HGET").arg(self.keys.turn(&record.name)).arg(turn::FENCE);
        }
        let fences: Vec<Option<String>> = self.connection.pipeline(Question::Sweep, &pipe).await?;
        let same = seen.into_iter().zip(fences).filter(|(record, fence)| fence.is_some() && *fence == record.fence);
        Ok(same.map(|(record, _)| record.name.clone()).collect())
    }

    /// Those of `names` that have calls left, no slice out, and that nothing will look at again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn waiting_without_timer(&self, names: &[TurnName]) -> Result<Vec<TurnName>, StoreError> {
        let waiting = self.records(names).await?.into_iter().filter(|record| !record.is_out()).collect();
        self.without_timer(waiting).await
    }

    /// The records of turns that have calls left.
    async fn records(&self, names: &[TurnName]) -> Result<Vec<Record>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("HMGET").arg(self.keys.turn(name)).arg(FIELDS);
        }
        let found = self.connection.answers(Question::Sweep, &pipe).await?;
        Ok(names.iter().zip(found).filter_map(|(name, fields)| record(name.clone(), fields.ok()?)).collect())
    }

    /// Asks for each record and its timers together. A script may run in between: what seems wrong is asked for again
    /// before anybody acts on it.
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
        // No transaction, for Redis opens none while its memory is full.
        for Record { name, agent, lane, .. } in waiting {
            let agents = || Lane::Agent(name.tenant.clone(), agent.clone());
            let lane = lane.as_deref().and_then(Lane::parse).unwrap_or_else(agents);
            pipe.cmd("HMGET").arg(self.keys.turn(name)).arg(FIELDS);
            pipe.cmd("ZSCORE").arg(&timers).arg(format!("t:{name}"));
            pipe.cmd("ZSCORE").arg(&timers).arg(format!("l:{lane}"));
            pipe.cmd("ZSCORE").arg(self.keys.key(format_args!("lane:{lane}"))).arg(lane.member(name));
        }
        let mut answers = self.connection.answers(Question::Sweep, &pipe).await?.into_iter();
        let mut there = || answers.next().and_then(Result::ok).unwrap_or(Value::Nil);
        let mut lost = Vec::new();
        for before in waiting {
            let (fields, own, lane, place) = (there(), there(), there(), there());
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
fn record(name: TurnName, fields: Value) -> Option<Record> {
    let fields: Vec<Option<String>> = redis::from_redis_value(fields).ok()?;
    let [agent, fence, calls, admitted, done, since, queue, crashes, lane, paid] =
        <[Option<String>; 10]>::try_from(fields).ok()?;
    let number = |text: Option<String>| text.as_deref().and_then(whole);
    let record = Record {
        name,
        agent: AgentId::new(agent?).ok()?,
        queues: places(queue.unwrap_or_default(), crashes.is_some()),
        fence,
        lane,
        calls: number(calls)?,
        admitted: number(admitted)?,
        done: number(done).unwrap_or(0),
        paid: paid.map_or(0, |text| i64::try_from(paid_of(&text)).unwrap_or(0)),
        since_ms: number(since).unwrap_or(0),
    };
    (record.done < record.calls).then_some(record)
}

/// Returns the queues where the slice of a turn may be whose record names this queue.
fn places(queue: String, suspect: bool) -> Vec<String> {
    match Queue::parse(&queue) {
        Some(Queue::Ready(priority)) if suspect => vec![Queue::Suspect(priority).to_string(), queue],
        _ => vec![queue],
    }
}

fn is_some(value: &Value) -> bool {
    matches!(value, Value::Array(found) if !found.is_empty())
}

/// Returns the id of the entry that our group has read last; empty if there is none.
fn last_delivered(groups: Value) -> String {
    let groups: Vec<BTreeMap<String, Value>> = redis::from_redis_value(groups).unwrap_or_default();
    let ours = groups.iter().find(|group| group.get("name").and_then(text_of).as_deref() == Some(GROUP));
    ours.and_then(|group| group.get("last-delivered-id")).and_then(text_of).unwrap_or_default()
}

/// Returns true if the first entry of a range is a slice of this turn.
fn is_slice_of(name: &TurnName, range: Value) -> bool {
    type Fields = Vec<(Vec<u8>, Vec<u8>)>;
    let entries: Vec<(String, Fields)> = redis::from_redis_value(range).unwrap_or_default();
    let named =
        |(field, value): &(Vec<u8>, Vec<u8>)| field == slice::NAME.as_bytes() && value == name.to_string().as_bytes();
    entries.first().is_some_and(|(_, fields)| fields.iter().any(named))
}

fn first_of(range: Value) -> String {
    let entries: Vec<(String, Value)> = redis::from_redis_value(range).unwrap_or_default();
    entries.into_iter().next().map(|(id, _)| id).unwrap_or_default()
}

/// Returns true if entry id `a` comes after `b`.
fn after(a: &str, b: &str) -> bool {
    let place = |id: &str| (entry_ms(id).unwrap_or(0), id.split_once('-').and_then(|(_, seq)| seq.parse::<u64>().ok()));
    place(a) > place(b)
}
