//! A shard as `tickfleet top` watches it. Reads only, and little: counters, ends of streams, the newest audit
//! entries, and a bounded number of lanes. No command here grows with what waits.

mod ended;
mod load;
mod stands;
mod view;

pub use ended::EndedCall;
pub use load::ServerLoad;
pub use stands::Stand;
pub use view::{LaneView, NodeView, ShardView, StreamView};

use std::collections::{BTreeMap, HashMap};

use redis::Value;

use ended::ended_call;
use load::server_load;

use crate::connection::question::Question;
use crate::connection::reader::entry;
use crate::keys::{GROUP, Lane, streams as stream_names};
use crate::reads::backlog::unread;
use crate::records::budgets::AgentBudget;
use crate::records::node::NodeSays;
use crate::records::schema::turn;
use crate::records::shard::ShardMeta;
use crate::records::slice::entry_ms;
use crate::script::reply::{into_text, number_of, text_of};
use crate::{Connection, Keys, StoreError};

/// Audit entries that one look reads at most. What came beyond is counted, but its tools are not seen.
const AUDIT_SEEN_MAX: usize = 200;
/// Timers that one look reads of the earliest.
const TIMERS_SEEN: usize = 500;
/// Timers that one look reads of a slow sweep through all, about.
const TIMERS_SWEPT: usize = 128;
/// Lanes that one look asks about.
const LANES_MAX: usize = 256;
/// Consumers whose lease ended longer ago are not shown, ms.
const GONE_MS_MAX: i64 = 300_000;

/// Watches one shard, look by look.
#[derive(Debug)]
pub struct Watch {
    connection: Connection,
    keys: Keys,
    audit_last: Option<String>,
    /// Audit entries that were seen and are of no call.
    not_calls: u64,
    cursor: u64,
    /// Lanes that the present sweep over all timers has found, and those of the sweep before.
    found: BTreeMap<String, i64>,
    known: Option<BTreeMap<String, i64>>,
}

impl Watch {
    /// Watches the shard with these keys over a connection to who holds them, which others may use too.
    #[must_use]
    pub const fn new(connection: Connection, keys: Keys) -> Self {
        Self { connection, keys, audit_last: None, not_calls: 0, cursor: 0, found: BTreeMap::new(), known: None }
    }

    /// Reads what the server says of its load.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn server(&self) -> Result<ServerLoad, StoreError> {
        let info: String = self.connection.query(Question::Watch, &redis::cmd("INFO")).await?;
        Ok(server_load(&info))
    }

    /// Looks at the shard, in three round trips.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn look(&mut self) -> Result<ShardView, StoreError> {
        let names: Vec<String> = stream_names().collect();
        let mut answers = self.ask(&self.first(&names)).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let meta = map_of(next());
        let meta = ShardMeta::read(|field| meta.get(field).and_then(text_of));
        let clock_ms = time_ms(next());
        let now_ms = clock_ms + meta.offset_ms;
        let (beats, said) = (map_of(next()), map_of(next()));
        let mut view = ShardView {
            now_ms,
            policy_generation: meta.policy_generation.unwrap_or(0),
            pressure: meta.pressure,
            nodes: nodes(&beats, &said, now_ms),
            timers: number_of(&next()).unwrap_or(0).unsigned_abs(),
            dead: number_of(&next()).unwrap_or(0).unsigned_abs(),
            delayed: number_of(&next()).unwrap_or(0).unsigned_abs(),
            paused: number_of(&next()).unwrap_or(0).unsigned_abs(),
            ..ShardView::default()
        };
        view.oldest_delayed_ms = scored(next()).first().map_or(0, |(_, since)| (now_ms - since).max(0));
        let audit = map_of(next());
        view.ended = self.ended(next());
        let added = audit.get("entries-added").and_then(number_of).map(i64::unsigned_abs);
        view.calls = added.map(|added| added.saturating_sub(self.not_calls));
        self.not_beyond(audit.get("last-generated-id").and_then(text_of));
        let (earliest, sweep) = (next(), next());
        view.timer_late_ms = self.sweep(earliest, sweep, now_ms);
        view.lanes_whole = self.known.as_ref().is_some_and(|known| known.len().max(self.found.len()) <= LANES_MAX);
        let mut delivered = Vec::new();
        for name in names {
            let (stream, of_stream) = stream_view(name, [next(), next(), next()], clock_ms);
            view.streams.push(stream);
            delivered.push(of_stream);
        }
        self.second(&mut view, &delivered, clock_ms).await?;
        Ok(view)
    }

    /// Everything that no other answer is needed for.
    fn first(&self, names: &[String]) -> redis::Pipeline {
        let key = |suffix: &str| self.keys.key(suffix);
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(key("meta")).cmd("TIME");
        pipe.cmd("HGETALL").arg(key("beats")).cmd("HGETALL").arg(key("nodes"));
        pipe.cmd("ZCARD").arg(key("timers")).cmd("XLEN").arg(key("dead"));
        pipe.cmd("ZCARD").arg(key("delayed")).cmd("HLEN").arg(key("pauses"));
        pipe.cmd("ZRANGE").arg(key("delayed")).arg(0).arg(0).arg("WITHSCORES");
        pipe.cmd("XINFO").arg("STREAM").arg(key("audit"));
        let since = self.audit_last.as_ref().map_or_else(|| "-".to_owned(), |last| format!("({last}"));
        pipe.cmd("XREVRANGE").arg(key("audit")).arg("+").arg(since).arg("COUNT").arg(AUDIT_SEEN_MAX);
        pipe.cmd("ZRANGE").arg(key("timers")).arg(0).arg(TIMERS_SEEN - 1).arg("WITHSCORES");
        pipe.cmd("ZSCAN").arg(key("timers")).arg(self.cursor).arg("MATCH").arg("l:*").arg("COUNT").arg(TIMERS_SWEPT);
        for name in names {
            pipe.cmd("XINFO").arg("GROUPS").arg(key(name));
            pipe.cmd("XPENDING").arg(key(name)).arg(GROUP).cmd("XLEN").arg(key(name));
        }
        pipe
    }

    /// Reads what hangs on the first answers: the oldest unread entries, and the lanes.
    async fn second(&self, view: &mut ShardView, delivered: &[Delivered], clock_ms: i64) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        for (stream, Delivered { last, .. }) in view.streams.iter().zip(delivered) {
            let key = self.keys.key(&stream.name);
            pipe.cmd("XRANGE").arg(key).arg(format!("({last}")).arg("+").arg("COUNT").arg(1);
        }
        let lanes = self.lanes();
        for (agent, _) in &lanes {
            let lane = self.keys.key(format_args!("lane:{agent}"));
            pipe.cmd("ZCARD").arg(&lane).cmd("ZRANGE").arg(&lane).arg(0).arg(0);
            pipe.cmd("HGET").arg(self.keys.key("budgets")).arg(agent);
        }
        let mut answers = self.ask(&pipe).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        for (stream, of_stream) in view.streams.iter_mut().zip(delivered) {
            let oldest = list(next()).into_iter().next().and_then(entry);
            stream.oldest_waiting_ms = oldest.as_ref().map_or(0, |oldest| age(&oldest.id, clock_ms));
            stream.waiting = unread(of_stream.lag, of_stream.length, stream.held, oldest.is_some());
        }
        let mut turns = redis::pipe();
        for (name, due_ms) in lanes {
            let (count, first, budget) = (next(), next(), next());
            let first = list(first).into_iter().next().and_then(into_text);
            let (Some(lane), Some(first)) = (Lane::parse(&name), first) else { continue };
            let (tenant, agent, limit, first) = match lane {
                Lane::Agent(tenant, agent) => {
                    (tenant.to_string(), agent.to_string(), None, format!("{tenant}:{first}"))
                }
                // What a counter is of may be many tenants', or private.
                Lane::Counter { limit, .. } => (String::new(), String::new(), Some(limit.to_string()), first),
            };
            turns.cmd("HGET").arg(self.keys.key(format_args!("turn:{first}"))).arg(turn::ADMITTED_MS);
            let used = match budget {
                Value::BulkString(packed) => AgentBudget::unpack(&packed),
                _ => AgentBudget::default(),
            };
            view.lanes.push(LaneView {
                tenant,
                agent,
                limit,
                first,
                turns: number_of(&count).unwrap_or(0).unsigned_abs(),
                oldest_ms: None,
                due_in_ms: due_ms - view.now_ms,
                tick_used: used.tick_used,
                day_used: used.day_used,
            });
        }
        if !view.lanes.is_empty() {
            for (lane, admitted) in view.lanes.iter_mut().zip(self.ask(&turns).await?) {
                lane.oldest_ms = number_of(&admitted).map(|at| (view.now_ms - at).max(0));
            }
        }
        Ok(())
    }

    /// A pipeline's answers. What a missing stream answers is an error of that command alone.
    async fn ask(&self, pipe: &redis::Pipeline) -> Result<Vec<Value>, StoreError> {
        let answers = self.connection.answers(Question::Watch, pipe).await?;
        let refused = |error: &redis::RedisError| matches!(error.code(), Some("NOPERM" | "NOAUTH"));
        answers
            .into_iter()
            .map(|answer| match answer {
                Err(error) if refused(&error) => Err(StoreError::verb("watch", error)),
                other => Ok(other.unwrap_or(Value::Nil)),
            })
            .collect()
    }

    /// The newest calls that ended since the last look, newest first.
    fn ended(&mut self, found: Value) -> Vec<EndedCall> {
        let entries: Vec<_> = list(found).into_iter().filter_map(entry).collect();
        if let Some(newest) = entries.first() {
            self.audit_last = Some(newest.id.clone());
        }
        let calls: Vec<_> = entries.iter().filter_map(|entry| ended_call(&entry.id, entry.field("audit")?)).collect();
        self.not_calls += (entries.len() - calls.len()) as u64;
        calls
    }

    /// Redis may have lost the newest entry that was seen, and number what comes below it: then nothing was seen.
    fn not_beyond(&mut self, newest: Option<String>) {
        let seen_ms = self.audit_last.as_deref().and_then(entry_ms);
        if newest.as_deref().and_then(entry_ms) < seen_ms {
            self.audit_last = None;
        }
    }

    /// Takes in what was seen of the timers. Answers by how much the earliest is late, ms.
    fn sweep(&mut self, earliest: Value, sweep: Value, now_ms: i64) -> i64 {
        let earliest = scored(earliest);
        let late_ms = earliest.first().map_or(0, |(_, due)| (now_ms - due).max(0));
        let mut sweep = list(sweep).into_iter();
        self.cursor = sweep.next().as_ref().and_then(number_of).unwrap_or(0).unsigned_abs();
        let swept = sweep.next().map(scored).unwrap_or_default();
        let lanes = earliest.into_iter().chain(swept);
        let lanes = lanes.filter_map(|(member, due)| Some((member.strip_prefix("l:")?.to_owned(), due)));
        self.found.extend(lanes.take(2 * TIMERS_SEEN));
        if self.cursor == 0 {
            self.known = Some(std::mem::take(&mut self.found));
        }
        late_ms
    }

    /// The lanes that are known, `tenant:agent` with the time of their next look; what was found last goes first.
    fn lanes(&self) -> Vec<(String, i64)> {
        let mut lanes = self.known.clone().unwrap_or_default();
        lanes.extend(self.found.iter().map(|(name, due)| (name.clone(), *due)));
        let mut lanes: Vec<_> = lanes.into_iter().collect();
        lanes.sort_by_key(|(_, due)| *due);
        lanes.truncate(LANES_MAX);
        lanes
    }
}

/// What a stream's group was given, as Redis reports it.
struct Delivered {
    /// The entry up to which it has read.
    last: String,
    /// Entries that it has not read, if Redis reports a number. It may be wrong: see [`unread`].
    lag: Option<u64>,
    /// Entries of the stream.
    length: u64,
}

/// A stream without what it takes its oldest unread entry to know.
fn stream_view(name: String, [groups, pending, length]: [Value; 3], clock_ms: i64) -> (StreamView, Delivered) {
    let group = list(groups).into_iter().next().map(map_of).unwrap_or_default();
    let number = |field: &str| group.get(field).and_then(number_of).map(i64::unsigned_abs);
    let mut pending = list(pending).into_iter();
    let held = pending.next().as_ref().and_then(number_of).unwrap_or(0).unsigned_abs();
    let oldest = pending.next().as_ref().and_then(text_of);
    let last = group.get("last-delivered-id").and_then(text_of).unwrap_or_else(|| "0-0".to_owned());
    // A group that has never read anything has no count of it.
    let read = number("entries-read").or_else(|| (last == "0-0").then_some(0));
    let view = StreamView {
        name,
        waiting: 0,
        held,
        oldest_waiting_ms: 0,
        oldest_held_ms: oldest.map_or(0, |id| age(&id, clock_ms)),
        added: read.zip(number("lag")).map(|(read, lag)| read + lag),
    };
    (view, Delivered { last, lag: number("lag"), length: number_of(&length).unwrap_or(0).unsigned_abs() })
}

pub(crate) fn nodes(beats: &HashMap<String, Value>, said: &HashMap<String, Value>, now_ms: i64) -> Vec<NodeView> {
    let view = |(name, until): (&String, &Value)| {
        let said = said.get(name).and_then(text_of).map(|said| NodeSays::read(&said)).unwrap_or_default();
        NodeView {
            name: name.clone(),
            beat_age_ms: said.beat_ms.map(|beat| (now_ms - beat).max(0)),
            lease_left_ms: number_of(until).unwrap_or(0) - now_ms,
            slots: said.slots,
            drained: said.drained,
        }
    };
    let mut nodes: Vec<NodeView> = beats.iter().map(view).filter(|node| node.lease_left_ms > -GONE_MS_MAX).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

/// Age of an entry by Redis' own clock, which writes the ids, ms.
fn age(id: &str, clock_ms: i64) -> i64 {
    entry_ms(id).map_or(0, |at| (clock_ms - at).max(0))
}

fn time_ms(value: Value) -> i64 {
    let mut parts = list(value).into_iter().map(|part| number_of(&part).unwrap_or(0));
    parts.next().unwrap_or(0) * 1_000 + parts.next().unwrap_or(0) / 1_000
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        _ => Vec::new(),
    }
}

/// Names and values, as a hash or an `XINFO` answers them.
fn map_of(value: Value) -> HashMap<String, Value> {
    if let Value::Map(pairs) = value {
        return pairs.into_iter().filter_map(|(name, value)| Some((into_text(name)?, value))).collect();
    }
    let mut values = list(value).into_iter();
    let mut map = HashMap::new();
    while let (Some(name), Some(value)) = (values.next(), values.next()) {
        if let Some(name) = into_text(name) {
            map.insert(name, value);
        }
    }
    map
}

/// Members with their scores, whole ms.
fn scored(value: Value) -> Vec<(String, i64)> {
    let mut values = list(value).into_iter();
    let mut members = Vec::new();
    while let (Some(member), Some(score)) = (values.next(), values.next()) {
        let score = text_of(&score).and_then(|score| score.parse::<f64>().ok());
        if let (Some(member), Some(score)) = (into_text(member), score) {
            members.push((member, score as i64));
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::node::Slots;

    #[test]
    fn a_node_without_an_account_of_itself_is_shown_and_one_gone_for_long_is_not() {
        let text = |text: &str| Value::BulkString(text.into());
        let beats = [("w-a", "1010000"), ("w-old", "1"), ("s-b", "1005000"), ("w-lost", "999000")]
            .map(|(name, until)| (name.to_owned(), text(until)));
        let said = [("w-a".to_owned(), text("998000 12000 3 16"))].into();
        let nodes = nodes(&beats.into(), &said, 1_000_000);
        assert_eq!(nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["s-b", "w-a", "w-lost"]);
        assert_eq!(nodes[1].slots, Some(Slots { busy: 3, all: 16 }));
        assert_eq!((nodes[1].beat_age_ms, nodes[0].beat_age_ms), (Some(2_000), None));
        assert_eq!(nodes[2].lease_left_ms, -1_000);
    }
}
