//! A shard as `tickfleet top` and the console show it. The cost of a poll does not grow with the amount of waiting work.

mod ended;
mod followed_turns;
mod load;
mod view;

pub use ended::EndedCall;
pub use followed_turns::FollowedTurn;
pub use load::ServerLoad;
pub use view::{ShardView, StreamView, ThrottleQueueView};

use std::collections::BTreeMap;
use std::ops::Bound;

use tickfleet_core::keys::{self, limits};
use tickfleet_core::settings::{self, Settings};
use tickfleet_core::turn::Turn;
use tickfleet_core::{CounterKey, EntryId, Query, Stored};

use ended::ended_call;
use load::server_load;

use super::budgets::AgentBudget;
use super::nodes::nodes;
use super::{age, counter, entry_ms, members, queues, score_ms, size};
use crate::connection::command::RedisCommand;
use crate::seam::inspect::{Entry, Range};
use crate::{Store, StoreError, TurnName};

/// The maximum number of audit entries to read. Further entries are counted, but their tools are not shown.
const AUDIT_SEEN_MAX: usize = 200;
const TIMERS_SEEN: usize = 500;
/// The number of timers in each step of a slow scan of all timers. The scan finds the remaining throttle queues.
const TIMERS_SWEPT: usize = 128;
const QUEUES_MAX: usize = 256;

#[derive(Debug)]
pub struct Watch {
    store: Store,
    audit_last: Option<EntryId>,
    not_calls: u64,
    cursor: u64,
    /// Throttle queues of the current scan, with their timers. `known` has those of the previous scan.
    found: BTreeMap<CounterKey, i64>,
    known: Option<BTreeMap<CounterKey, i64>>,
}

struct Timers {
    earliest: Vec<(std::sync::Arc<str>, u64)>,
    swept: Vec<(std::sync::Arc<str>, u64)>,
    next: u64,
}

impl Watch {
    #[must_use]
    pub const fn new(store: Store) -> Self {
        Self { store, audit_last: None, not_calls: 0, cursor: 0, found: BTreeMap::new(), known: None }
    }

    pub async fn server(&self) -> Result<ServerLoad, StoreError> {
        if self.store.is_in_memory() {
            let shard_stats = self.store.seam().shard_stats().await?;
            return Ok(ServerLoad {
                used_memory: shard_stats.memory_bytes,
                maxmemory: shard_stats.memory_max,
                ..ServerLoad::default()
            });
        }
        Ok(server_load(&self.store.connection().query(RedisCommand::Watch, &redis::cmd("INFO")).await?))
    }

    pub async fn poll(&mut self) -> Result<ShardView, StoreError> {
        let store = self.store.clone();
        let shard_stats = store.seam().shard_stats().await?;
        let now_ms = shard_stats.shard.now_ms;
        let clock_ms = shard_stats.clock_ms;
        let timers = Query::First { set: keys::timers(), upto: None, count: TIMERS_SEEN };
        let parked = Query::First { set: keys::parked(), upto: None, count: 1 };
        let queries =
            [timers, parked, Query::Size(keys::timers()), Query::Size(keys::parked()), Query::Record(settings::key())];
        let mut found = store.values(&queries).await?;
        let earliest = members(found.next());
        let parked = members(found.next());
        let mut view = ShardView {
            now_ms,
            policy_generation: shard_stats.shard.policy,
            pressure: shard_stats.shard.pressure,
            nodes: nodes(&store.consumer_records().await?, now_ms),
            timers: size(found.next()),
            delayed: size(found.next()),
            oldest_delayed_ms: parked.first().map_or(0, |(_, since)| (now_ms - score_ms(*since)).max(0)),
            ..ShardView::default()
        };
        let set: Option<Stored<Settings>> = super::stored(&settings::key(), found.next())?;
        view.paused = set.map_or(0, |set| set.value.pauses);
        view.dead = store.seam().page(&keys::dead(), &Range::oldest(1)).await?.1.length;
        self.add_calls(&mut view).await?;
        let prefix = "throttle:";
        let (swept, next) = store.seam().scan_members(&keys::timers(), prefix, self.cursor, TIMERS_SWEPT).await?;
        view.timer_late_ms = self.sweep(Timers { earliest, swept, next }, now_ms);
        view.throttle_queues_whole =
            self.known.as_ref().is_some_and(|known| known.len().max(self.found.len()) <= QUEUES_MAX);
        let names = queues();
        for (name, state) in names.iter().zip(store.seam().queue_states(&names).await?) {
            view.streams.push(StreamView {
                name: name.to_string(),
                waiting: state.waiting,
                held: state.held,
                oldest_waiting_ms: age(state.oldest_waiting.as_ref(), clock_ms),
                oldest_held_ms: age(state.oldest_held.as_ref(), clock_ms),
                added: Some(state.added),
            });
        }
        self.add_throttle_queues(&mut view).await?;
        Ok(view)
    }

    async fn add_calls(&mut self, view: &mut ShardView) -> Result<(), StoreError> {
        let from = self.audit_last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let range = Range { from, ..Range::newest(AUDIT_SEEN_MAX) };
        let (entries, state) = self.store.seam().page(&keys::audit(), &range).await?;
        view.ended = self.ended(&entries);
        view.calls = state.last.is_some().then(|| state.added.saturating_sub(self.not_calls));
        // The store may have lost the newest entry that was read, and may give lower IDs to new entries. Then the next
        // poll reads all entries again.
        let ms = |entry: &Option<EntryId>| entry.as_ref().and_then(|entry| entry_ms(entry.as_str()));
        if ms(&state.last) < ms(&self.audit_last) {
            self.audit_last = None;
        }
        Ok(())
    }

    /// The newest first.
    fn ended(&mut self, entries: &[Entry]) -> Vec<EndedCall> {
        if let Some((newest, _)) = entries.first() {
            self.audit_last = Some(newest.clone());
        }
        let text = |fields: &tickfleet_core::view::Fields| {
            fields.iter().find(|(name, _)| &**name == "audit").map(|(_, text)| text.clone())
        };
        let calls: Vec<_> = entries.iter().filter_map(|(id, fields)| ended_call(id.as_str(), &text(fields)?)).collect();
        self.not_calls += (entries.len() - calls.len()) as u64;
        calls
    }

    /// Returns the lateness of the earliest timer (ms).
    fn sweep(&mut self, timers: Timers, now_ms: i64) -> i64 {
        let late_ms = timers.earliest.first().map_or(0, |(_, due)| (now_ms - score_ms(*due)).max(0));
        self.cursor = timers.next;
        let queues = timers.earliest.into_iter().chain(timers.swept);
        let queues = queues.filter_map(|(member, due)| {
            let (limit, counter) = member.strip_prefix("throttle:")?.split_once('@')?;
            Some((CounterKey::new(limit, counter), score_ms(due)))
        });
        self.found.extend(queues.take(2 * TIMERS_SEEN));
        if self.cursor == 0 {
            self.known = Some(std::mem::take(&mut self.found));
        }
        late_ms
    }

    /// Each with the time of its next evaluation, the earliest first.
    fn queues(&self) -> Vec<(CounterKey, i64)> {
        let mut queues = self.known.clone().unwrap_or_default();
        queues.extend(self.found.iter().map(|(counter, due)| (counter.clone(), *due)));
        let mut queues: Vec<_> = queues.into_iter().collect();
        queues.sort_by_key(|(_, due)| *due);
        queues.truncate(QUEUES_MAX);
        queues
    }

    async fn add_throttle_queues(&self, view: &mut ShardView) -> Result<(), StoreError> {
        let queues = self.queues();
        let mut queries = Vec::with_capacity(4 * queues.len());
        for (waits, _) in &queues {
            let set = keys::throttle_queue(waits);
            queries.extend([Query::Size(set.clone()), Query::First { set, upto: None, count: 1 }]);
            queries.extend(super::budgets::of_agent(&waits.counter));
        }
        let mut found = self.store.values(&queries).await?;
        let mut turns = Vec::new();
        for (waits, due_ms) in queues {
            let count = size(found.next());
            let first = members(found.next());
            let used = AgentBudget::of(counter(found.next()), counter(found.next()));
            let Some(first) = first.first().and_then(|(name, _)| TurnName::parse(name)) else { continue };
            let (tenant, agent, limit) = match &*waits.limit {
                limits::TICK | limits::DAY => {
                    let (tenant, agent) = waits.counter.split_once(':').unwrap_or((&waits.counter, ""));
                    (tenant.to_owned(), agent.to_owned(), None)
                }
                limits::TENANT_DAY => (waits.counter.to_string(), String::new(), None),
                // Hide the name: tenants may share the counter, and its name may be private.
                limit => (String::new(), String::new(), Some(limit.to_owned())),
            };
            view.throttle_queues.push(ThrottleQueueView {
                tenant,
                agent,
                limit,
                first: first.to_string(),
                turns: count,
                oldest_ms: None,
                due_in_ms: due_ms - view.now_ms,
                tick_used: used.tick_used,
                day_used: used.day_used,
            });
            turns.push(first.record());
        }
        let queries: Vec<Query> = turns.iter().map(|record| Query::Record(record.clone())).collect();
        let found = self.store.values(&queries).await?;
        for ((queue, record), value) in view.throttle_queues.iter_mut().zip(&turns).zip(found) {
            let stored: Option<Stored<Turn>> = super::stored(record, Some(value)).unwrap_or_default();
            queue.oldest_ms = stored.map(|stored| (view.now_ms - stored.value.admitted_ms).max(0));
        }
        Ok(())
    }
}
