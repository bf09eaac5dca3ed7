//! A view of the fleet, built from two polls. This module does no I/O.

use serde::Serialize;
use tickfleet_model::policy::Policy;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{NodeView, ShardView, ThrottleQueueView};

use super::finding::Finding;
use super::poll_result::PollResult;
use super::tools::Tools;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Heading {
    /// The password is masked.
    pub(crate) redis: String,
    /// Shard time in ms since the epoch.
    pub(crate) now_ms: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Frame {
    #[serde(flatten)]
    pub(crate) heading: Heading,
    /// 0 if no scheduler has ever run.
    pub(crate) policy_generation: u64,
    pub(crate) paused: u64,
    pub(crate) server: Server,
    pub(crate) rates: Rates,
    pub(crate) slots: Slots,
    pub(crate) backlog: Vec<WorkInState>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) agents: Vec<Agent>,
    /// False until the polls have read all agents with waiting turns.
    pub(crate) agents_complete: bool,
    pub(crate) tools: Tools,
    /// Empty if there is only one shard.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) shards: Vec<Shard>,
    pub(crate) findings: Vec<Finding>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Server {
    pub(crate) version: String,
    pub(crate) used_bytes: u64,
    /// 0 if memory is unlimited.
    pub(crate) max_bytes: u64,
    pub(crate) commands_per_s: u64,
    pub(crate) clients: u64,
    /// 1 is one whole core.
    pub(crate) cpu: Option<f64>,
}

/// Per second since the last poll. `None` on the first poll, or if Redis does not report the numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub(crate) turns: Option<f64>,
    pub(crate) slices: Option<f64>,
    pub(crate) calls: Option<f64>,
}

/// The slots of live workers, according to the last heartbeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Slots {
    pub(crate) busy: usize,
    pub(crate) all: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct WorkInState {
    pub(crate) state: &'static str,
    pub(crate) count: u64,
    pub(crate) unit: &'static str,
    pub(crate) oldest_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) shard: usize,
    pub(crate) alive: bool,
    pub(crate) heartbeat_age_ms: Option<i64>,
    pub(crate) lease_left_ms: i64,
    pub(crate) slots: Option<Slots>,
    pub(crate) drained: bool,
}

/// A row for an agent with waiting turns, or for a limit with waiting turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Agent {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) tenant: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<String>,
    pub(crate) turns: u64,
    pub(crate) oldest_ms: Option<i64>,
    pub(crate) due_in_ms: i64,
    pub(crate) tick_used: i64,
    pub(crate) day_used: i64,
    /// The cap per tick in the local configuration. `None` if unknown, or if the row is a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tick_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) day_max: Option<u32>,
    pub(crate) first: String,
}

impl Agent {
    pub(crate) fn name(&self) -> String {
        match &self.limit {
            Some(limit) => format!("limit {limit}"),
            None => format!("{}:{}", self.tenant, self.agent),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Shard {
    pub(crate) shard: usize,
    pub(crate) inbound: u64,
    pub(crate) ready: u64,
    pub(crate) running: u64,
    pub(crate) agents: usize,
    pub(crate) calls_per_s: Option<f64>,
}

impl Frame {
    pub(super) fn of(heading: Heading, last: Option<&PollResult>, now: &PollResult, tools: Tools) -> Self {
        let passed = last.map_or(0.0, |last| now.at.duration_since(last.at).as_secs_f64());
        let shards = &now.shards;
        let nodes = nodes(shards);
        let mut slots = Slots::default();
        for slots_of_node in nodes.iter().filter(|node| node.alive).filter_map(|node| node.slots) {
            slots.busy += slots_of_node.busy;
            slots.all += slots_of_node.all;
        }
        let mut frame = Self {
            heading,
            paused: shards.iter().map(|shard| shard.paused).sum(),
            policy_generation: shards.iter().map(|shard| shard.policy_generation).max().unwrap_or(0),
            server: server(last, now, passed),
            rates: Rates {
                turns: rate(last, now, passed, |shard| added(shard, |name| !name.starts_with("ready"))),
                slices: rate(last, now, passed, |shard| added(shard, |name| name.starts_with("ready"))),
                calls: rate(last, now, passed, |shard| shard.calls),
            },
            slots,
            backlog: backlog(shards),
            nodes,
            agents: shards.iter().flat_map(|shard| shard.throttle_queues.iter().map(agent)).collect(),
            agents_complete: shards.iter().all(|shard| shard.throttle_queues_whole),
            tools,
            shards: in_short(last, now, passed),
            findings: Vec::new(),
        };
        frame.sort();
        frame
    }

    pub(super) fn with_caps(mut self, policy: &Policy) -> Self {
        for agent in self.agents.iter_mut().filter(|agent| agent.limit.is_none()) {
            let (Ok(tenant), Ok(name)) = (TenantId::new(&agent.tenant), AgentId::new(&agent.agent)) else { continue };
            let Ok((owner, declared)) = policy.look_up(&tenant, &name) else { continue };
            let caps = policy.caps(owner, declared);
            (agent.tick_max, agent.day_max) = (Some(caps.calls_per_tick), Some(caps.calls_per_day));
        }
        self
    }

    /// Lost processes, and the largest queues and counts, come first.
    fn sort(&mut self) {
        self.agents.sort_by(|a, b| {
            b.turns.cmp(&a.turns).then_with(|| (&a.tenant, &a.agent, &a.limit).cmp(&(&b.tenant, &b.agent, &b.limit)))
        });
        self.tools.rows.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.tool.cmp(&b.tool)));
        self.nodes.sort_by(|a, b| (a.alive, a.kind, &a.name).cmp(&(b.alive, b.kind, &b.name)));
    }
}

/// `None` if Redis does not report the number for one of the streams.
fn added(shard: &ShardView, wanted: impl Fn(&str) -> bool) -> Option<u64> {
    shard.streams.iter().filter(|stream| wanted(&stream.name)).map(|stream| stream.added).sum()
}

fn rate(
    last: Option<&PollResult>,
    now: &PollResult,
    passed_s: f64,
    counter: impl Fn(&ShardView) -> Option<u64>,
) -> Option<f64> {
    // The counters of a shard that did not respond are unknown, so the total is unknown too.
    let total =
        |seen: &PollResult| seen.shards.iter().map(&counter).sum::<Option<u64>>().filter(|_| seen.unread.is_empty());
    per_second(total(last?), total(now), passed_s)
}

fn per_second(before: Option<u64>, now: Option<u64>, passed_s: f64) -> Option<f64> {
    // If the counter decreased, the stream was deleted and created again, so the growth is unknown.
    let grown = now?.checked_sub(before?)?;
    #[allow(clippy::cast_precision_loss, reason = "a count a second is far below 2^53")]
    (passed_s > 0.0).then(|| (grown as f64 / passed_s * 10.0).round() / 10.0)
}

fn server(last: Option<&PollResult>, now: &PollResult, passed_s: f64) -> Server {
    let load = &now.server;
    let busy_s = last.map(|last| load.cpu_seconds - last.server.cpu_seconds).filter(|busy| *busy >= 0.0);
    Server {
        version: load.version.clone(),
        used_bytes: load.used_memory,
        max_bytes: load.maxmemory,
        commands_per_s: load.ops,
        clients: load.clients,
        cpu: busy_s.filter(|_| passed_s > 0.0).map(|busy| (busy / passed_s * 100.0).round() / 100.0),
    }
}

fn backlog(shards: &[ShardView]) -> Vec<WorkInState> {
    let streams = |wanted: fn(&str) -> bool| {
        shards.iter().flat_map(|shard| &shard.streams).filter(move |stream| wanted(&stream.name))
    };
    let unread = |state, unit, wanted: fn(&str) -> bool| {
        let count: u64 = streams(wanted).map(|stream| stream.waiting).sum();
        let oldest = streams(wanted).map(|stream| stream.oldest_waiting_ms).max();
        WorkInState { state, count, unit, oldest_ms: oldest.filter(|_| count > 0) }
    };
    let is_ready: fn(&str) -> bool = |name| name.starts_with("ready");
    let running: u64 = streams(is_ready).map(|stream| stream.held).sum();
    let held_longest = streams(is_ready).map(|stream| stream.oldest_held_ms).max();
    let queues = || shards.iter().flat_map(|shard| &shard.throttle_queues);
    let only = |state, unit, count| WorkInState { state, count, unit, oldest_ms: None };
    vec![
        unread("inbound turns", "turns", |name| name == "turns"),
        unread("inbound tasks", "tasks", |name| name == "tasks"),
        unread("ready", "slices", is_ready),
        WorkInState {
            state: "running",
            count: running,
            unit: "slices",
            oldest_ms: held_longest.filter(|_| running > 0),
        },
        WorkInState {
            state: "capped",
            count: queues().map(|queue| queue.turns).sum(),
            unit: "turns",
            oldest_ms: queues().filter_map(|queue| queue.oldest_ms).max(),
        },
        WorkInState {
            state: "delayed",
            count: shards.iter().map(|shard| shard.delayed).sum(),
            unit: "turns",
            oldest_ms: shards.iter().map(|shard| shard.oldest_delayed_ms).max().filter(|age_ms| *age_ms > 0),
        },
        only("timers", "timers", shards.iter().map(|shard| shard.timers).sum()),
        only("dead", "entries", shards.iter().map(|shard| shard.dead).sum()),
    ]
}

fn nodes(shards: &[ShardView]) -> Vec<Node> {
    let node = |(shard, node): (usize, &NodeView)| Node {
        name: node.name.clone(),
        kind: match node.name.split_once('-') {
            Some(("s", _)) => "scheduler",
            Some(("w", _)) => "worker",
            _ => "other",
        },
        shard,
        alive: node.lease_left_ms > 0,
        heartbeat_age_ms: node.heartbeat_age_ms,
        lease_left_ms: node.lease_left_ms,
        slots: node.slots.map(|slots| Slots { busy: slots.busy, all: slots.all }),
        drained: node.drained,
    };
    let all = shards.iter().enumerate().flat_map(|(shard, view)| view.nodes.iter().map(move |node| (shard, node)));
    all.map(node).collect()
}

fn agent(queue: &ThrottleQueueView) -> Agent {
    Agent {
        tenant: queue.tenant.clone(),
        agent: queue.agent.clone(),
        limit: queue.limit.clone(),
        turns: queue.turns,
        oldest_ms: queue.oldest_ms,
        due_in_ms: queue.due_in_ms,
        tick_used: queue.tick_used,
        day_used: queue.day_used,
        tick_max: None,
        day_max: None,
        first: queue.first.clone(),
    }
}

fn in_short(last: Option<&PollResult>, now: &PollResult, passed_s: f64) -> Vec<Shard> {
    if now.shards.len() < 2 {
        return Vec::new();
    }
    let row = |(number, shard): (usize, &ShardView)| {
        let sum = |wanted: fn(&str) -> bool, of: fn(&tickfleet_store::StreamView) -> u64| {
            shard.streams.iter().filter(|stream| wanted(&stream.name)).map(of).sum()
        };
        let before = last.and_then(|last| last.shards.get(number)?.calls);
        Shard {
            shard: number,
            inbound: sum(|name| !name.starts_with("ready"), |stream| stream.waiting),
            ready: sum(|name| name.starts_with("ready"), |stream| stream.waiting),
            running: sum(|name| name.starts_with("ready"), |stream| stream.held),
            agents: shard.throttle_queues.len(),
            calls_per_s: per_second(before, shard.calls, passed_s),
        }
    };
    now.shards.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use tickfleet_store::{ServerLoad, StreamView};

    use super::*;

    fn stream(name: &str, waiting: u64, held: u64, added: u64) -> StreamView {
        let oldest_ms = i64::try_from(waiting * 1_000).unwrap();
        StreamView {
            name: name.into(),
            waiting,
            held,
            oldest_waiting_ms: oldest_ms,
            oldest_held_ms: 7,
            added: Some(added),
        }
    }

    fn view(calls: u64) -> ShardView {
        ShardView {
            policy_generation: 1,
            streams: vec![stream("turns", 3, 0, calls), stream("ready:normal", 0, 2, 2 * calls)],
            calls: Some(calls),
            ..ShardView::default()
        }
    }

    #[allow(clippy::disallowed_methods, reason = "a moment to count from")]
    fn seen(after: Duration, shards: Vec<ShardView>) -> PollResult {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        PollResult { at: *START + after, server: ServerLoad::default(), shards, unread: BTreeMap::new() }
    }

    fn frame(last: Option<&PollResult>, now: &PollResult) -> Frame {
        Frame::of(Heading::default(), last, now, Tools::default())
    }

    #[test]
    fn rates_cover_all_shards_since_the_last_poll() {
        let first = seen(Duration::ZERO, vec![view(100), view(0)]);
        assert_eq!(frame(None, &first).rates, Rates::default());
        let now = seen(Duration::from_secs(2), vec![view(200), view(20)]);
        let frame = frame(Some(&first), &now);
        assert_eq!(frame.rates, Rates { turns: Some(60.0), slices: Some(120.0), calls: Some(60.0) });
        assert_eq!(frame.shards[1].calls_per_s, Some(10.0));
        let lost = seen(Duration::from_secs(3), vec![view(1), view(1)]);
        assert_eq!(Frame::of(Heading::default(), Some(&now), &lost, Tools::default()).rates.calls, None);
    }

    #[test]
    fn a_state_sums_its_shards_and_shows_the_oldest_age() {
        let frame = frame(None, &seen(Duration::ZERO, vec![view(1), view(1)]));
        let of = |state| frame.backlog.iter().find(|waiting| waiting.state == state).unwrap();
        assert_eq!((of("inbound turns").count, of("inbound turns").oldest_ms), (6, Some(3_000)));
        assert_eq!((of("ready").count, of("ready").oldest_ms), (0, None));
        assert_eq!((of("running").count, of("running").oldest_ms), (4, Some(7)));
    }

    #[test]
    fn slots_count_live_workers_and_dead_nodes_are_listed_first() {
        let node = |name: &str, lease_left_ms| NodeView {
            name: name.into(),
            heartbeat_age_ms: Some(1),
            lease_left_ms,
            slots: Some(tickfleet_store::Slots { busy: 2, all: 16 }),
            drained: false,
        };
        let shard = ShardView { nodes: vec![node("w-a", 10), node("w-b", -1)], ..view(0) };
        let frame = frame(None, &seen(Duration::ZERO, vec![shard]));
        assert_eq!(frame.slots, Slots { busy: 2, all: 16 });
        assert_eq!(frame.nodes[0].name, "w-b");
    }

    #[test]
    fn a_shard_that_does_not_respond_makes_the_rates_unknown() {
        let first = seen(Duration::ZERO, vec![view(100), view(0)]);
        let unread = BTreeMap::from([(1, "away".to_owned())]);
        let now = PollResult { unread, ..seen(Duration::from_secs(1), vec![view(200), ShardView::default()]) };
        assert_eq!(frame(Some(&first), &now).rates, Rates::default());
        let back = seen(Duration::from_secs(2), vec![view(300), view(5_000)]);
        assert_eq!(frame(Some(&now), &back).rates, Rates::default(), "its calls meanwhile are no rate");
    }

    #[test]
    fn agents_with_more_turns_come_first() {
        let queue = |agent: &str, turns, oldest_ms| ThrottleQueueView {
            tenant: "t".into(),
            agent: agent.into(),
            limit: None,
            first: "t:x".into(),
            turns,
            oldest_ms: Some(oldest_ms),
            due_in_ms: 0,
            tick_used: 10,
            day_used: 10,
        };
        let shard =
            ShardView { throttle_queues: vec![queue("b", 1, 90), queue("c", 9, 10), queue("a", 5, 50)], ..view(0) };
        let frame = frame(None, &seen(Duration::ZERO, vec![shard]));
        assert_eq!(frame.agents.iter().map(|agent| agent.agent.as_str()).collect::<String>(), "cab");
    }
}
