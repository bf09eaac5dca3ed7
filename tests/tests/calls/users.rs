//! Each Redis user has the rights of one role, as exactly as ACL rules can express them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::json;
use tickfleet_client::{Client, RecordedReply};
use tickfleet_core::call::begin::Begin;
use tickfleet_core::turn::{RequeueReason, RequeueSlice, Slice, Turn};
use tickfleet_core::workers::{self, Heartbeat};
use tickfleet_core::{Stored, keys};
use tickfleet_model::{Call, ConsumerId, Effect, Priority, TenantId, TurnId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_protocol::parse_turn;
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::{DEFAULT_USER, DefaultUser, Follower, Pool, Refusal, Role, Store, Submission, TurnName};
use tickfleet_testkit::{RedisOptions, RedisServer};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan, users};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{ToolError, TypedTool};

fn pay() -> TypedTool {
    let pay =
        TypedTool::new("pay", "Pays.", Effect::Once, |_, _: serde_json::Value| async { Ok::<_, ToolError>(json!({})) });
    pay.effect_key(&["/to"], std::time::Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_runs_with_only_the_permissions_of_its_roles() {
    let plan = Plan { users: true, workers: 2, tools: vec![pay()], ..Plan::default() };
    let mut fleet = Fleet::start(plan).await;
    let more = vec![("echo", json!({"text": "x"})); 12];
    for calls in [
        vec![("echo", json!({"text": "hi"})), ("nope", json!({})), ("fail_once", json!({}))],
        vec![
            ("pay", json!({"to": "kim"})),
            ("pay", json!({"to": "kim"})),
            ("fail", json!({"outcomes": ["transient", "ok"]})),
        ],
        // A turn with more calls than a tick allows uses throttle queues and timers.
        more,
        vec![("delegate_task", json!({"target_agent": "kelly", "task_description": "Look."}))],
    ] {
        fleet.submit(&calls).await;
        let reply = fleet.reply().await;
        assert_eq!(outcomes(&reply).len(), calls.len(), "{reply:#}");
    }
    fleet.submit_turn(json!({"turn_id": "late", "calls": [{"name": "sleep", "arguments": {"ms": 30_000}}]})).await;
    fleet.leased().await;
    let late = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("late").unwrap() };
    let operator = Store::open(&fleet.url_of("operator"), 0, fleet.plan().store.clone().into()).unwrap();
    operator.cancel(&late, "no longer wanted").await.unwrap();
    assert_eq!(outcomes(&fleet.reply().await), ["cancelled"]);
    fleet.stop().await;
}

fn refused<T: std::fmt::Debug, E: std::fmt::Display + std::fmt::Debug>(what: &str, answer: Result<T, E>) {
    let error = answer.expect_err(what);
    let said = error.to_string();
    let by_acl =
        ["NOPERM", "ACL failure in script", "The user executing the script", "no permissions", "No permissions"];
    assert!(by_acl.iter().any(|words| said.contains(words)), "{what}: {said}");
}

async fn held_slice(fleet: &Fleet) -> Slice {
    let call = json!({"name": "sleep", "arguments": {"ms": 60_000}});
    fleet.submit_turn(json!({"turn_id": "long", "calls": [call]})).await;
    fleet.leased().await;
    let name = TurnName::parse("acme:long").unwrap();
    let stored: Stored<Turn> = fleet.store.record_of(&name.record()).await.unwrap().unwrap();
    let call = Call { provider_id: None, tool: "sleep".into(), arguments: r#"{"ms":60000}"#.into() };
    Slice {
        queue: keys::ready(Priority::Normal),
        entry: stored.in_flight_entry().unwrap().clone(),
        name,
        version: stored.version,
        turn: stored.value,
        debited: stored.debits,
        calls: vec![call],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_can_submit_but_cannot_act_as_a_worker() {
    let mut fleet = Fleet::start(Plan { users: true, ..Plan::default() }).await;
    let options = fleet.plan().store.clone();
    let turn = |id: &str| {
        let call = json!({"name": "echo", "arguments": {"text": "hi"}});
        let turn = json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "turn_id": id, "calls": [call]});
        parse_turn(turn.to_string().as_bytes()).unwrap()
    };
    for role in ["producer", "gateway"] {
        let client = Client::connect(&fleet.url_of(role), options.clone()).await.unwrap();
        client.submit(turn(role)).await.unwrap();
        assert_eq!(outcomes(&fleet.try_reply(PATIENCE).await.unwrap()), ["ok"], "{role}");
        let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(role).unwrap() };
        client.reply(&name).await.unwrap();
    }
    let mut connection = fleet.server.connection().await;
    users::assert_nobody_was_refused(&mut connection).await;

    let slice = held_slice(&fleet).await;
    let begin = Begin {
        slice: &slice,
        position: 0,
        by: "forged",
        once: true,
        is_durable: false,
        epoch: fleet.store.refresh_state().await.unwrap().epoch,
        lease_ms: options.lease_ms,
        streak: None,
        facts: None,
        consent: None,
        claim: None,
        cache: None,
    };
    let consumer = ConsumerId::new("w").unwrap();
    let beat =
        Heartbeat { consumer, role: workers::Role::Scheduler, lease_ms: options.lease_ms, policy: String::new() };
    let take = TakeRequest { consumer: "w".into(), queues: vec![keys::ready(Priority::Normal)], count: 1, wait_ms: 0 };
    for role in ["producer", "viewer"] {
        let store = Store::open(&fleet.url_of(role), 0, options.clone().into()).unwrap();
        let back = RequeueSlice { slice: &slice, reason: &RequeueReason::Unsent { nonce: None } };
        refused("begin", store.decide(begin.clone()).await);
        refused("requeue", store.decide(back).await);
        refused("beat", store.decide(beat.clone()).await);
        refused("cancel", store.cancel(&slice.name, "why").await);
        refused("read", store.seam().take(&take).await);
    }
    let gateway = Store::open(&fleet.url_of("gateway"), 0, options.clone().into()).unwrap();
    refused("read", gateway.seam().take(&take).await);
    let viewer = Client::connect(&fleet.url_of("viewer"), options).await;
    if let Ok(client) = viewer {
        client.submit(turn("looked")).await.unwrap_err();
    }
    assert_eq!(fleet.unfinished("long").await, Some(slice.turn));
    fleet.cancel_turn("long").await;
    assert_eq!(outcomes(&fleet.reply().await), ["cancelled"]);
    let () = redis::cmd("ACL").arg("LOG").arg("RESET").query_async(&mut connection).await.unwrap();
    fleet.stop().await;
}

/// `P:` stands for the shard's prefix.
const ATTACKS: &str = include_str!("attacks.txt");
/// Must fail, although a gateway may pause, cancel and replay.
const ATTACKS_OF_GATEWAYS: &str = include_str!("attacks_of_gateways.txt");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weak_roles_cannot_destroy_forge_or_stop_anything() {
    let mut fleet = Fleet::start(Plan { users: true, ..Plan::default() }).await;
    fleet.submit_turn(json!({"turn_id": "t1", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    let prefix = fleet.store.keys().key("");
    fleet.until("its tools are listed", async |fleet| fleet.ask::<u64>("EXISTS", "tools", &[]).await == 1).await;
    let before = keys(&mut fleet.server.connection().await).await;
    for (role, attacks) in
        [("producer", ATTACKS), ("exporter", ATTACKS), ("viewer", ATTACKS), ("gateway", ATTACKS_OF_GATEWAYS)]
    {
        let mut connection = connected(&fleet.url_of(role)).await;
        for attack in attacks.lines() {
            let words: Vec<String> = attack.split(' ').map(|word| word.replace("P:", &prefix)).collect();
            let mut command = redis::cmd(&words[0]);
            command.arg(&words[1..]);
            let answer = command.query_async::<redis::Value>(&mut connection).await;
            assert_eq!(
                answer.as_ref().err().and_then(redis::RedisError::code),
                Some("NOPERM"),
                "{role}: {attack}: {answer:?}"
            );
        }
    }
    assert_eq!(keys(&mut fleet.server.connection().await).await, before);

    let mut connection = fleet.server.connection().await;
    let () = redis::cmd("FUNCTION").arg("FLUSH").query_async(&mut connection).await.unwrap();
    let client = Client::connect(&fleet.url_of("producer"), fleet.plan().store.clone()).await.unwrap();
    let call = json!({"name": "echo", "arguments": {"text": "hi"}});
    let turn = json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "turn_id": "t2", "calls": [call]});
    let turn = turn.to_string();
    let submits = async |_: &Fleet| client.submit(parse_turn(turn.as_bytes()).unwrap()).await.is_ok();
    fleet.until("the turn is submitted", submits).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    let () = redis::cmd("ACL").arg("LOG").arg("RESET").query_async(&mut connection).await.unwrap();
    fleet.stop().await;
}

const HOW_TO: &str = "docs/operate/redis-users-and-tls.md";

fn page(path: &str) -> String {
    std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

fn users_of_the_guide() -> String {
    let pages = [page("docs/reference/redis-users.md"), page(HOW_TO)].join("\n");
    let blocks = pages.split("```acl\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.collect::<String>() + &format!("user default {DEFAULT_USER}\n")
}

#[test]
fn the_guide_lists_the_rules_of_every_role_and_the_default_user() {
    let guide = users_of_the_guide();
    let namespace = tickfleet_store::StoreOptions::default().namespace;
    let of_role =
        |(name, role): (&str, Role)| format!("user {name} on >{name}-secret {}", role.rules(&namespace).join(" "));
    let expected = Role::WORDS.map(of_role);
    let missing: Vec<&String> = expected.iter().filter(|line| guide.lines().all(|found| found != *line)).collect();
    assert!(missing.is_empty(), "docs/reference/redis-users.md lacks:\n{missing:#?}");
    assert!(page(HOW_TO).contains(&format!("user default {DEFAULT_USER}")), "{HOW_TO} lacks the user default");
}

async fn guarded(folder: &std::path::Path, users: &str) -> RedisServer {
    let file = folder.join("users.acl");
    std::fs::write(&file, users).unwrap();
    let extra_args = vec!["--aclfile".to_owned(), file.to_str().unwrap().to_owned()];
    let options = RedisOptions { appendonly: true, tcp: true, extra_args, ..RedisOptions::default() };
    RedisServer::start_with(options).await
}

async fn connected(url: &str) -> MultiplexedConnection {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < deadline {
        if let Ok(mut connection) = tickfleet_testkit::connect(url).await
            && redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        {
            return connection;
        }
        // No event reports that a server is ready, so this polls.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{url} does not answer");
}

async fn ended(client: &Client, name: &TurnName) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < deadline {
        if matches!(client.reply(name).await.unwrap(), RecordedReply::Ended(_)) {
            return;
        }
        // Redis does not announce a record, so this polls.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{name} has not ended");
}

async fn keys(connection: &mut MultiplexedConnection) -> BTreeSet<String> {
    let (_, found): (u64, Vec<String>) =
        redis::cmd("SCAN").arg(0).arg("COUNT").arg(10_000).query_async(connection).await.unwrap();
    found.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_is_not_repeated_after_a_restart_with_the_guides_users() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = guarded(folder.path(), &users_of_the_guide()).await;
    let url = |role: &str| users::url_in(&server.url(), role);
    let scheduler_url = url("scheduler");
    let worker_url = url("worker");
    let producer_url = url("producer");
    let node_url = url("tickfleet");
    let paid = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&paid);
    let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |_, _: serde_json::Value| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>(json!({})) }
    });
    let plan = Plan { users: true, tools: vec![pay], ..Plan::default() };
    plan.store(&scheduler_url).ensure_groups().await.unwrap();
    let active = plan.active();
    let metrics = Arc::new(Metrics::new().unwrap());
    let shutdown = Shutdown::default();
    let scheduler = plan.scheduler(plan.store(&scheduler_url), active.clone(), metrics.clone(), "s0");
    let stop = shutdown.draining.clone();
    let scheduling = tokio::spawn(async move { scheduler.run(stop).await });
    let worker = plan.worker(plan.store(&worker_url), active, metrics, "w0", shutdown.now.child_token());
    let until = shutdown.clone();
    let working = tokio::spawn(async move { worker.run(until).await });

    let turn = || {
        let call = json!({"name": "pay", "arguments": {"to": "kim"}});
        let turn = json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "turn_id": "t1", "calls": [call]});
        parse_turn(turn.to_string().as_bytes()).unwrap()
    };
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("t1").unwrap() };
    let client = Client::connect(&producer_url, plan.store.clone()).await.unwrap();
    client.submit(turn()).await.unwrap();
    ended(&client, &name).await;
    let before = keys(&mut connected(&node_url).await).await;
    assert!(before.iter().any(|key| key.ends_with("id:acme:t1")), "{before:?}");

    server.restart().await;
    let after = keys(&mut connected(&node_url).await).await;
    let lost: Vec<&String> = before.difference(&after).collect();
    assert!(lost.is_empty(), "lost by the restart: {lost:?}");
    let client = Client::connect(&producer_url, plan.store.clone()).await.unwrap();
    client.submit(turn()).await.unwrap();
    ended(&client, &name).await;
    assert_eq!(paid.load(Ordering::SeqCst), 1, "a call of a once tool ran again");
    shutdown.drain();
    scheduling.await.unwrap().unwrap();
    working.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_operator_sees_whether_the_default_user_can_load_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let guide = users_of_the_guide();
    for (rules, may_load) in
        [(DEFAULT_USER, true), ("off", false), ("off +@all", false), ("off ~* &* +@all -exec", false)]
    {
        let users = guide.replace(&format!("user default {DEFAULT_USER}"), &format!("user default {rules}"));
        let server = guarded(folder.path(), &users).await;
        drop(connected(&users::url_in(&server.url(), "operator")).await);
        let pool = Pool::open(&users::url_in(&server.url(), "operator"), 1).unwrap();
        let found = pool.default_user().await.unwrap();
        assert_eq!(found == DefaultUser::Loads, may_load, "{rules}: {found:?}");
        assert!(may_load || matches!(found, DefaultUser::Refuses(_)), "{rules}: {found:?}");
        let pool = Pool::open(&users::url_in(&server.url(), "worker"), 1).unwrap();
        assert_eq!(pool.default_user().await.unwrap(), DefaultUser::NotAllowed);
    }
}

async fn function(connection: &mut MultiplexedConnection) -> String {
    let found: Vec<BTreeMap<String, redis::Value>> =
        redis::cmd("FUNCTION").arg("LIST").query_async(connection).await.unwrap();
    redis::from_redis_value(found[0]["library_name"].clone()).unwrap()
}

/// Arguments of a commit, after the server's run ID and the lease.
const FORGED: [&[&str]; 6] = [
    // The memory flag, and generations that would make all decisions of schedulers stale.
    &["0", "0", "6", "v ", "", "", "note", "pressure", "1"],
    &["0", "0", "6", "v ", "", "", "note", "policy", "99999"],
    &["0", "0", "6", "v ", "", "", "note", "settings", "99999"],
    // These lengths could lead the function back to an earlier argument, in an endless loop.
    &["0", "0", "-1"],
    &["1000000000000", "counters", "-2", "0"],
    &["0", "0", "7", "v ", "", "1", "enqueue", "P:turns", "-3", "0"],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_and_exporters_cannot_change_shard_time_or_state() {
    let mut fleet = Fleet::start(Plan { users: true, ..Plan::default() }).await;
    let options = Arc::new(fleet.plan().store.clone());
    let before = fleet.store.refresh_state().await.unwrap();
    let in_ten_days = before.now_ms + 864_000_000;
    let meta = fleet.store.keys().key("meta");
    for role in ["producer", "exporter", "viewer"] {
        let mut connection = connected(&fleet.url_of(role)).await;
        let state = format!("864000000 {} 1 0 99999 99999 1", "0".repeat(40));
        for field in [["last_ms", &in_ten_days.to_string()], ["state", &state], ["pressure", "1"]] {
            let error =
                redis::cmd("HSET").arg(&meta).arg(&field).query_async::<u64>(&mut connection).await.unwrap_err();
            assert_eq!(error.code(), Some("NOPERM"), "{role} {field:?}");
        }
    }
    let prefix = fleet.store.keys().key("");
    let function = function(&mut fleet.server.connection().await).await;
    for role in ["producer", "exporter"] {
        let mut connection = connected(&fleet.url_of(role)).await;
        for forged in FORGED {
            let mut command = redis::cmd("FCALL");
            command.arg(&function).arg(1).arg(&prefix).arg("").arg(2_000);
            command.arg(forged.iter().map(|word| word.replace("P:", &prefix)).collect::<Vec<_>>());
            let answered = command.query_async::<redis::Value>(&mut connection);
            // The server may reject the call or ignore it.
            let _ = tokio::time::timeout(PATIENCE, answered).await.expect("the function ends");
            let state = fleet.store.refresh_state().await.unwrap();
            let changed = (state.policy, state.settings, state.pressure);
            assert_eq!(changed, (before.policy, before.settings, before.pressure), "{role} {forged:?}");
        }
    }
    let producer = Store::open(&fleet.url_of("producer"), 0, options.clone()).unwrap();
    let submission = Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: None,
        digest: String::new(),
        reply_to: None,
        payload: "{".into(),
    };
    producer.submit(&[submission]).await.unwrap().pop().unwrap().unwrap();
    let exporter = Store::open(&fleet.url_of("exporter"), 0, options).unwrap();
    let process = ConsumerId::new("e").unwrap();
    exporter.checkpoint(Follower { name: "test", process: &process, lease_ms: 10 }, "", "").await.unwrap();
    let after = fleet.store.refresh_state().await.unwrap();
    assert!(after.now_ms < in_ten_days - 86_400_000, "shard time was moved to {}", after.now_ms);
    fleet.submit(&[("echo", json!({"text": "hi"}))]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    let mut connection = fleet.server.connection().await;
    let () = redis::cmd("ACL").arg("LOG").arg("RESET").query_async(&mut connection).await.unwrap();
    fleet.stop().await;
}

#[tokio::test]
async fn a_password_rotation_keeps_existing_connections() {
    let server = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    users::make(&server, "tickfleet").await;
    let mut connection = server.connection().await;
    let old = users::url_in(&server.url(), "worker");
    let new = old.replace("worker-secret", "newer-secret");
    let set = async |connection: &mut MultiplexedConnection, rule: &str| -> String {
        redis::cmd("ACL").arg(&["SETUSER", "worker", rule]).query_async(connection).await.unwrap()
    };
    let shard = |url: &str| Store::open(url, 0, Arc::default()).unwrap();
    let before = shard(&old);
    before.probe().await.unwrap();

    set(&mut connection, ">newer-secret").await;
    for url in [&old, &new] {
        shard(url).probe().await.unwrap();
    }
    set(&mut connection, "<worker-secret").await;
    before.probe().await.unwrap();
    shard(&new).probe().await.unwrap();
    let refused = shard(&old).probe().await.unwrap_err();
    assert_eq!(refused.refusal(), Some(Refusal::Login), "{refused}");
}
