//! Each accepted turn must get one reply, and no `once` call may run twice, whatever happens to Redis.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::Effect;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_store::StoreOptions;
use tickfleet_testkit::{RedisOptions, RedisServer};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{CallContext, TypedTool};
use tokio::sync::watch;

#[derive(Deserialize, JsonSchema)]
struct RecoveredCall {
    /// The mark of the run.
    mark: String,
}

#[derive(Serialize, JsonSchema)]
struct Ran {
    attempt: u32,
}

/// Tools return only while the gate is open. `look` is a read, and `act` is `once`.
pub(super) struct Gate {
    pub(super) runs: Arc<Mutex<BTreeMap<String, usize>>>,
    pub(super) open: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new(open: bool) -> Self {
        Self { runs: Arc::default(), open: watch::Sender::new(open) }
    }

    fn tools(&self) -> Vec<TypedTool> {
        [("look", Effect::Read), ("act", Effect::Once)].map(|(name, effect)| self.tool(name, effect)).into()
    }

    pub(super) fn tool(&self, name: &str, effect: Effect) -> TypedTool {
        let runs = self.runs.clone();
        let open = self.open.clone();
        TypedTool::new(name, "Notes that it ran.", effect, move |context: CallContext, args: RecoveredCall| {
            let runs = runs.clone();
            let mut open = open.subscribe();
            async move {
                *runs.lock().unwrap().entry(args.mark).or_default() += 1;
                drop(open.wait_for(|open| *open).await);
                Ok(Ran { attempt: context.attempt })
            }
        })
    }

    fn runs(&self, mark: &str) -> usize {
        self.runs.lock().unwrap().get(mark).copied().unwrap_or(0)
    }

    fn all_runs(&self) -> usize {
        self.runs.lock().unwrap().values().sum()
    }
}

/// The lease is short, because tests wait for its end. It is longer than one second, because a busy machine can stall
/// for a second.
fn plan(gate: &Gate) -> Plan {
    Plan {
        caps: DefaultCaps {
            tick_ms: 200,
            calls_per_tick: 1_000,
            max_actions_per_day: 1_000_000,
            ..DefaultCaps::default()
        },
        store: StoreOptions { lease_ms: 2_000, ..StoreOptions::default() },
        tools: gate.tools(),
        drain: Duration::from_millis(300),
        ..Plan::default()
    }
}

async fn durable() -> RedisServer {
    RedisServer::start_with(RedisOptions { appendonly: true, ..RedisOptions::default() }).await
}

fn call(name: &str, mark: &str) -> Value {
    json!({"id": mark, "name": name, "arguments": {"mark": mark}})
}

async fn submit(fleet: &Fleet, prefix: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for i in 0..count {
        let id = format!("{prefix}{i}");
        let calls =
            [call("look", &format!("{id}.a")), call("act", &format!("{id}.b")), call("look", &format!("{id}.c"))];
        fleet.submit_turn(json!({"turn_id": id, "calls": calls})).await;
        ids.push(id);
    }
    ids
}

async fn each_is_answered_once(fleet: &mut Fleet, gate: &Gate, ids: &[String]) {
    let replies = fleet.replies(ids.len()).await;
    for id in ids {
        let [first, act, last] = outcomes(&replies[id])[..] else { panic!("three results: {}", replies[id]) };
        assert_eq!((first, last), ("ok", "ok"), "{id}: {}", replies[id]);
        let ran = gate.runs(&format!("{id}.b"));
        match act {
            "ok" => assert_eq!(ran, 1, "{id}"),
            "outcome_unknown" => assert!(ran <= 1, "{id} ran {ran} times"),
            other => panic!("{id}: {other}"),
        }
    }
}

#[tokio::test]
async fn a_draining_worker_requeues_its_unfinished_turns() {
    let gate = Gate::new(false);
    let plan = plan(&gate);
    // The lease must not end during the test, because another worker would start the calls again.
    let store = StoreOptions { lease_ms: 20_000, ..plan.store.clone() };
    let mut fleet = Fleet::start(Plan { slots: 4, store, ..plan }).await;
    for i in 0..8 {
        let (name, mark) = if i == 0 { ("act", "act".to_owned()) } else { ("look", format!("look{i}")) };
        fleet
            .submit_turn(json!({"turn_id": mark, "calls": [call(name, &mark), call("look", &format!("{mark}.then"))]}))
            .await;
    }
    fleet.until("all slots run", async |_| gate.all_runs() == 4).await;
    fleet.drain_worker().await;
    let reply = fleet.try_reply(Duration::from_millis(1)).await;
    assert!(reply.is_none(), "nothing has ended yet: {reply:?}");
    fleet.add_worker();
    gate.open.send_replace(true);
    let replies = fleet.replies(8).await;
    for (turn, reply) in &replies {
        let expected = if turn == "act" { ["outcome_unknown", "ok"] } else { ["ok", "ok"] };
        assert_eq!(outcomes(reply), expected, "{reply:#}");
    }
    assert!(gate.runs("act") <= 1, "it ran {} times", gate.runs("act"));
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_draining_worker_waits_for_calls_that_end_within_the_drain_time() {
    let gate = Gate::new(false);
    let mut fleet = Fleet::start(Plan { drain: Duration::from_secs(10), ..plan(&gate) }).await;
    fleet.submit_turn(json!({"turn_id": "t", "calls": [call("act", "a")]})).await;
    fleet.until("it runs", async |_| gate.all_runs() == 1).await;
    let open = gate.open.clone();
    let opened = tokio::spawn(async move {
        // The drain must take longer than the lease, which the worker must renew.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        open.send_replace(true);
    });
    fleet.drain_worker().await;
    opened.await.unwrap();
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), gate.runs("a")), (vec!["ok"], 1));
    fleet.stop().await;
}

#[tokio::test]
async fn every_turn_gets_one_reply_after_redis_is_killed_and_restarted() {
    let gate = Gate::new(false);
    let plan = Plan { schedulers: 2, workers: 2, ..plan(&gate) };
    let mut fleet = Fleet::start_on(durable().await, plan).await;
    let ids = submit(&fleet, "t", 24).await;
    fleet.until("calls run", async |_| gate.all_runs() >= 4).await;
    fleet.server.kill9();
    gate.open.send_replace(true);
    fleet.server.restart().await;
    each_is_answered_once(&mut fleet, &gate, &ids).await;
    fleet.until_redis_answers().await;
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn every_turn_gets_one_reply_if_redis_is_killed_while_results_settle() {
    let gate = Gate::new(true);
    let plan = Plan { schedulers: 2, workers: 2, ..plan(&gate) };
    let mut fleet = Fleet::start_on(durable().await, plan).await;
    let ids = submit(&fleet, "t", 60).await;
    fleet.until("some have acted", async |_| gate.all_runs() >= 30).await;
    fleet.server.kill9();
    fleet.server.restart().await;
    each_is_answered_once(&mut fleet, &gate, &ids).await;
    fleet.until_redis_answers().await;
    fleet.no_more_replies().await;
    fleet.stop().await;
}

async fn paused_for(pause: Duration) {
    let gate = Gate::new(false);
    let mut fleet = Fleet::start(Plan { schedulers: 2, workers: 2, ..plan(&gate) }).await;
    let ids = submit(&fleet, "t", 12).await;
    fleet.until("calls run", async |_| gate.all_runs() >= 12).await;
    fleet.server.pause();
    gate.open.send_replace(true);
    // Redis does not respond during this sleep.
    tokio::time::sleep(pause).await;
    fleet.server.resume();
    each_is_answered_once(&mut fleet, &gate, &ids).await;
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn every_turn_gets_one_reply_if_redis_pauses_for_about_a_lease() {
    paused_for(Duration::from_millis(1_900)).await;
}

#[tokio::test]
async fn every_turn_gets_one_reply_if_redis_pauses_for_longer_than_a_lease() {
    paused_for(Duration::from_millis(3_500)).await;
}

#[tokio::test]
async fn the_fleet_works_again_after_redis_is_flushed() {
    let gate = Gate::new(false);
    let mut fleet = Fleet::start(Plan { schedulers: 2, workers: 2, ..plan(&gate) }).await;
    submit(&fleet, "lost", 4).await;
    fleet.until("calls run", async |_| gate.all_runs() == 4).await;
    let () = redis::cmd("FLUSHALL").query_async(&mut fleet.server.connection().await).await.unwrap();
    gate.open.send_replace(true);
    fleet
        .until("the loss is noticed", async |fleet| !fleet.metrics.render().contains("tickfleet_state_lost_total 0"))
        .await;
    fleet.until("the inbound stream is there", async |fleet| fleet.ask::<u64>("EXISTS", "turns", &[]).await == 1).await;
    let ids = submit(&fleet, "new", 4).await;
    each_is_answered_once(&mut fleet, &gate, &ids).await;
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn every_turn_gets_one_reply_while_connections_are_cut_repeatedly() {
    let gate = Gate::new(true);
    let mut fleet = Fleet::start(Plan { schedulers: 2, workers: 2, ..plan(&gate) }).await;
    let server = fleet.server.connection().await;
    let mut ids = Vec::new();
    for round in 0..8 {
        for half in 0..2 {
            fleet.until_redis_answers().await;
            ids.extend(submit(&fleet, &format!("r{round}h{half}n"), 3).await);
            if half == 0 {
                let kill = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).to_owned();
                let _: u64 = kill.query_async(&mut server.clone()).await.unwrap();
            }
        }
    }
    each_is_answered_once(&mut fleet, &gate, &ids).await;
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn two_schedulers_together_keep_the_daily_cap() {
    let gate = Gate::new(true);
    let caps = DefaultCaps { tick_ms: 500, calls_per_tick: 4, max_actions_per_day: 10, ..DefaultCaps::default() };
    let mut fleet = Fleet::start(Plan { schedulers: 2, workers: 2, caps, ..plan(&gate) }).await;
    for i in 0..14 {
        fleet.submit_turn(json!({"turn_id": format!("t{i}"), "calls": [call("look", &format!("m{i}"))]})).await;
    }
    let replies = fleet.replies(14).await;
    let of = |outcome: &str| replies.values().filter(|r| outcomes(r) == [outcome]).count();
    assert_eq!((of("ok"), of("daily_cap_reached")), (10, 4));
    assert_eq!((gate.all_runs(), fleet.debited("kelly").await), (10, 10));
    fleet.stop().await;
}

async fn used_memory(fleet: &Fleet) -> u64 {
    let info: String =
        redis::cmd("INFO").arg("memory").query_async(&mut fleet.server.connection().await).await.unwrap();
    info.lines().find_map(|l| l.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap()
}

async fn bound_memory(fleet: &Fleet, percent: u64) {
    let max = used_memory(fleet).await / 100 * percent;
    let command = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(max).to_owned();
    let () = command.query_async(&mut fleet.server.connection().await).await.unwrap();
}

async fn pressure(fleet: &Fleet, is: &str) {
    let flag = async |fleet: &Fleet| fleet.ask::<Option<String>>("HGET", "meta", &["pressure"]).await;
    fleet.until("the scripts are told of memory", async |fleet| flag(fleet).await.as_deref() == Some(is)).await;
}

#[tokio::test]
async fn full_redis_memory_blocks_submissions_but_admitted_turns_finish() {
    let gate = Gate::new(false);
    let mut fleet = Fleet::start(plan(&gate)).await;
    let before = submit(&fleet, "before", 3).await;
    fleet.until("they run", async |_| gate.all_runs() == 3).await;
    bound_memory(&fleet, 111).await;
    pressure(&fleet, "1").await;
    let during = submit(&fleet, "during", 3).await;
    fleet.until("they run, too", async |_| gate.all_runs() == 6).await;
    let turn = tickfleet_protocol::parse_turn(
        json!({"tenant": "acme", "agent": "kelly", "calls": [call("look", "never")]}).to_string().as_bytes(),
    );
    let client = tickfleet_client::Client::connect(&fleet.server.url(), fleet.plan().store.clone()).await.unwrap();
    let refused = client.submit(turn.unwrap()).await;
    assert!(matches!(refused, Err(tickfleet_client::SubmitError::Pressure)), "{refused:?}");
    let capped = submit(&fleet, "last", 3).await;
    bound_memory(&fleet, 95).await;
    gate.open.send_replace(true);
    let ids: Vec<String> = [before, during, capped].concat();
    each_is_answered_once(&mut fleet, &gate, &ids).await;
    bound_memory(&fleet, 500).await;
    pressure(&fleet, "0").await;
    let after = submit(&fleet, "after", 2).await;
    each_is_answered_once(&mut fleet, &gate, &after).await;
    fleet.stop().await;
}

#[tokio::test]
async fn turns_follow_the_newest_policy_despite_a_scheduler_with_an_older_one() {
    let gate = Gate::new(true);
    let mut fleet = Fleet::start(Plan { schedulers: 2, ..plan(&gate) }).await;
    fleet.submit_turn(json!({"calls": [call("look", "first")]})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    let mut newer = (*fleet.active.load()).clone();
    newer.digest = "newer".into();
    newer.policy.defaults.max_actions_per_day = 2;
    fleet.add_scheduler_with(Arc::new(PolicyHandle::new(newer)));
    fleet
        .until("the newer policy is in force", async |fleet| {
            fleet.store.policy_in_force().await.is_ok_and(|digest| digest.as_deref() == Some("newer"))
        })
        .await;
    for i in 0..8 {
        fleet.submit_turn(json!({"turn_id": format!("t{i}"), "calls": [call("look", &format!("m{i}"))]})).await;
    }
    let replies = fleet.replies(8).await;
    let ok = replies.values().filter(|r| outcomes(r) == ["ok"]).count();
    assert_eq!(ok, 1, "two actions a day, of which one was made before");
    fleet.stop().await;
}

#[tokio::test]
async fn denied_redis_commands_reject_no_turn_and_drop_no_result() {
    let gate = Gate::new(false);
    let plan = plan(&gate);
    let store = StoreOptions { lease_ms: 10_000, ..plan.store.clone() };
    let mut fleet = Fleet::start(Plan { workers: 2, store, ..plan }).await;
    for i in 0..9 {
        let mark = format!("t{i}");
        fleet.submit_turn(json!({"turn_id": mark, "calls": [call("act", &mark)]})).await;
    }
    fleet.until("all run", async |_| gate.all_runs() == 9).await;
    let mut redis = fleet.server.connection().await;
    let mut acl = async |rule: &str| {
        let () = redis::cmd("ACL").arg("SETUSER").arg("default").arg(rule).query_async(&mut redis).await.unwrap();
    };
    acl("-evalsha").await;
    gate.open.send_replace(true);
    fleet.submit_turn(json!({"turn_id": "meanwhile", "calls": [call("look", "meanwhile")]})).await;
    // In this time, Redis rejects commands of every process, but no lease ends.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    acl("+evalsha").await;
    let replies = fleet.replies(10).await;
    for (turn, reply) in &replies {
        assert_eq!((outcomes(reply), gate.runs(turn)), (vec!["ok"], 1), "{turn}: {reply:#}");
    }
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_turn_ends_normally_if_its_inbox_is_not_a_stream() {
    let gate = Gate::new(false);
    let mut fleet = Fleet::start(plan(&gate)).await;
    let stuck = json!({"turn_id": "stuck", "reply_to": "odd", "calls": [call("act", "stuck")]});
    fleet.submit_turn(stuck).await;
    fleet.submit_turn(json!({"turn_id": "other", "calls": [call("act", "other")]})).await;
    fleet.until("both run", async |_| gate.all_runs() == 2).await;
    let _: () = fleet.ask("SET", "replies:acme:odd", &["foreign"]).await;
    gate.open.send_replace(true);
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    fleet
        .until("its record is there", async |fleet| fleet.ask::<u64>("EXISTS", "done:acme:stuck", &[]).await == 1)
        .await;
    assert_eq!(gate.runs("stuck"), 1);
    let _: u64 = fleet.ask("DEL", "replies:acme:odd", &[]).await;
    fleet.stop().await;
}
