//! Caps with many agents and replicas. The checks do not use the fleet's own counters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::Timelike;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_core::keys;
use tickfleet_core::turn::Slice;
use tickfleet_engine::rules::stagger_ms;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{AgentId, Effect, Priority, TenantId};
use tickfleet_store::StoreOptions;
use tickfleet_store::seam::inspect::Range;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inbox::submit_all;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::time::Instant;

const AGENTS: usize = 2_000;
const TICK_MS: i64 = 3_000;
const CALLS_PER_TICK: u32 = 10;
/// Lasts for two and a half windows.
const CALLS_PER_DAY: u32 = 25;
/// Calls per turn of a wave. Their sum is twice as many as a window admits.
const TURNS: [usize; 3] = [3, 13, 4];
const WAVES: usize = 2;
/// The run fails after this time without a reply.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Serialize, JsonSchema)]
struct Stamp {
    stamp: u64,
}

fn stamp() -> TypedTool {
    let next = Arc::new(AtomicU64::new(0));
    TypedTool::new("stamp", "Stamps.", Effect::Read, move |_: CallContext, _: Nothing| {
        let stamp = next.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(Stamp { stamp }) }
    })
}

fn agent(n: usize) -> String {
    format!("agent-{n}")
}

fn wave(wave: usize) -> Vec<Value> {
    let turns = (0..AGENTS).flat_map(|a| TURNS.iter().enumerate().map(move |(t, calls)| (a, t, *calls)));
    let message = |(a, t, calls): (usize, usize, usize)| {
        let calls: Vec<Value> =
            (0..calls).map(|n| json!({"id": format!("c{n}"), "name": "stamp", "arguments": {}})).collect();
        json!({"turn_id": format!("{a}.{wave}.{t}"), "tenant": "acme", "agent": agent(a), "reply_to": "box", "calls": calls})
    };
    turns.map(message).collect()
}

/// Ready streams of this fleet keep all entries. An entry's ID is the shard time of its admission.
pub(super) async fn start_witnessed(plan: Plan) -> Fleet {
    let schedulers = plan.schedulers;
    let workers = plan.workers;
    let mut fleet = Fleet::start(Plan { schedulers: 0, workers: 0, ..plan }).await;
    // A commit without transactions loads the library of functions into Redis.
    fleet.store.refresh_state().await.unwrap();
    let mut connection = fleet.server.connection().await;
    let list = redis::cmd("FUNCTION").arg("LIST").arg("WITHCODE").to_owned();
    let libraries: Vec<BTreeMap<String, redis::Value>> = list.query_async(&mut connection).await.unwrap();
    let [library] = libraries.as_slice() else { panic!("one library: {libraries:?}") };
    let mut code: String = redis::from_redis_value(library["library_code"].clone()).unwrap();
    let removes = "local function delete_acknowledged(stream)\n";
    let keeps = format!("{removes}  if string.find(stream, ':ready:', 1, true) then return end\n");
    let calls = "  call(unpack(ARGV, i + 1, last)) return last + 1\n";
    let is_kept = "ARGV[i + 1] == 'XDEL' and string.find(ARGV[i + 2], ':ready:', 1, true)";
    let keeps_called = format!("  if {is_kept} then return last + 1 end\n{calls}");
    for (text, witnessing, times) in [
        (removes, keeps.as_str(), 1),
        (calls, keeps_called.as_str(), 1),
        ("entry = call('XADD', ARGV[i], '*', ", "entry = call('XADD', ARGV[i], now_text .. '-*', ", 1),
    ] {
        assert_eq!(code.matches(text).count(), times, "{text}");
        code = code.replace(text, witnessing);
    }
    let load = redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(code).to_owned();
    let _: String = load.query_async(&mut connection).await.unwrap();
    (0..schedulers).for_each(|_| fleet.add_scheduler());
    (0..workers).for_each(|_| fleet.add_worker());
    fleet
}

#[allow(clippy::disallowed_methods, reason = "only to stay away from midnight; the shard's clock decides")]
fn plan() -> Plan {
    // The day must not end during the test.
    let zone = if chrono::Utc::now().hour() == 23 { "Asia/Tokyo" } else { "UTC" };
    Plan {
        schedulers: 4,
        workers: 4,
        agents: (0..AGENTS).map(agent).collect(),
        caps: DefaultCaps {
            tick_ms: TICK_MS,
            calls_per_tick: CALLS_PER_TICK,
            max_actions_per_day: CALLS_PER_DAY,
            time_zone: zone.into(),
            ..DefaultCaps::default()
        },
        tools: vec![stamp()],
        store: StoreOptions {
            lease_ms: 10_000,
            // High, because the turns of all agents wait at the same time, and all replies go to one inbox.
            tenant_turns_max: 1_000_000,
            tenant_ready_max: 100_000,
            inbox_unread_max: 100_000,
            ..StoreOptions::default()
        },
        ..Plan::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_agent_exceeds_its_caps_in_any_window_or_day() {
    let fleet = start_witnessed(plan()).await;
    let started = Instant::now();
    let mut inbox = fleet.inbox("box").await;
    let mut replies = HashMap::new();
    let mut sent = 0;
    let expected = AGENTS * TURNS.len() * WAVES;
    while replies.len() < expected {
        if sent < WAVES
            && started.elapsed() >= Duration::from_millis(TICK_MS.unsigned_abs()) * u32::try_from(sent).unwrap()
        {
            submit_all(&fleet.server, fleet.store.keys(), &wave(sent)).await;
            sent += 1;
        }
        let wait = if sent < WAVES { Duration::from_millis(100) } else { SILENCE };
        let found = inbox.next(wait).await;
        assert!(
            !found.is_empty() || sent < WAVES,
            "{} of {expected} replies, and {SILENCE:?} without one",
            replies.len()
        );
        for reply in found {
            let id = reply["turn_id"].as_str().unwrap().to_owned();
            assert!(replies.insert(id, reply).is_none(), "two replies to one turn");
        }
    }
    eprintln!("{expected} turns in {:.1?}", started.elapsed());
    assert_eq!(inbox.total().await, expected, "replies in all");
    results_are_one_each_and_in_order(&replies);
    witness(&admissions(&fleet).await);
}

fn results_are_one_each_and_in_order(replies: &HashMap<String, Value>) {
    let mut outcomes = BTreeMap::<(usize, String), u32>::new();
    for (id, reply) in replies {
        let part = |n: usize| id.split('.').nth(n).unwrap().parse::<usize>().unwrap();
        let results = reply["results"].as_array().unwrap();
        assert_eq!(results.len(), TURNS[part(2)], "{id}");
        let mut last = None;
        for (n, result) in results.iter().enumerate() {
            assert_eq!(result["call"], format!("{id}/{n}"));
            let stamp = result["output"]["stamp"].as_u64();
            assert!(
                n == 0 || stamp.is_none() || (last.is_some() && last < stamp),
                "calls of {id} ran out of order: {reply}"
            );
            last = stamp;
            let code = result["error"]["code"].as_str().unwrap_or("ok").to_owned();
            *outcomes.entry((part(0), code)).or_default() += 1;
        }
    }
    let offered = u32::try_from(TURNS.iter().sum::<usize>() * WAVES).unwrap();
    for a in 0..AGENTS {
        let count = |code: &str| outcomes.get(&(a, code.to_owned())).copied().unwrap_or(0);
        assert_eq!((count("ok"), count("daily_cap_reached")), (CALLS_PER_DAY, offered - CALLS_PER_DAY), "agent {a}");
    }
}

/// By agent: the times (ms) at which calls became ready, in order.
async fn admissions(fleet: &Fleet) -> BTreeMap<AgentId, Vec<i64>> {
    let mut seen = HashSet::new();
    let mut admitted = BTreeMap::<AgentId, Vec<i64>>::new();
    for priority in Priority::ALL {
        let queue = keys::ready(priority);
        for (entry, fields) in fleet.store.seam().entries(&queue, &Range::oldest(1_000_000)).await.unwrap() {
            let ms: i64 = entry.as_str().split('-').next().unwrap().parse().unwrap();
            let slice = Slice::read(queue.clone(), entry, &fields).unwrap();
            let first = slice.turn.position;
            for n in first..first + slice.calls.len() {
                // A redelivered slice has a second entry, but its calls were admitted only once.
                if seen.insert((slice.name.clone(), n)) {
                    admitted.entry(slice.turn.head.agent.clone()).or_default().push(ms);
                }
            }
        }
    }
    admitted
}

fn witness(admitted: &BTreeMap<AgentId, Vec<i64>>) {
    assert_eq!(admitted.len(), AGENTS);
    let tenant = TenantId::new("acme").unwrap();
    let mut windows = 0;
    let mut full = 0;
    for (agent, times) in admitted {
        assert_eq!(times.len(), CALLS_PER_DAY as usize, "{agent} on one day");
        let stagger = stagger_ms(&tenant, agent, TICK_MS);
        let mut counts = BTreeMap::<i64, u32>::new();
        for ms in times {
            *counts.entry((ms - stagger).div_euclid(TICK_MS)).or_default() += 1;
        }
        for (window, count) in &counts {
            assert!(*count <= CALLS_PER_TICK, "{agent} has {count} admissions in window {window}: {times:?}");
        }
        windows += counts.len();
        full += counts.values().filter(|count| **count == CALLS_PER_TICK).count();
    }
    eprintln!("{windows} windows, {full} of them full, none over {CALLS_PER_TICK}");
    assert!(full > 0, "the caps were not put to the test");
}
