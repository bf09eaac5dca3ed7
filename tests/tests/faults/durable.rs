//! A tool can require a durable begin. Its call then runs only after Redis has confirmed the begin as durable.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_core::call::begin::{Begin, BeginResult};
use tickfleet_core::keys::limits;
use tickfleet_core::turn::Turn;
use tickfleet_core::turn::slice::{self, Slice};
use tickfleet_core::{CounterKey, Query, Transaction, Value as Answer, View};
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{Durability, Effect};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::{Confirmed, Store, StoreOptions, TurnName};
use tickfleet_testkit::{RedisOptions, RedisServer, SentinelSetup};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::killable::KillableProcess;
use tickfleet_tools::{ToolError, TypedTool};
use tokio::time::{Instant, sleep, timeout};

/// Short, because after a failover the next worker waits for the end of a lease.
const SHORT_LEASE_MS: i64 = 1_000;

type PaymentLog = Arc<Mutex<Vec<String>>>;

fn pay(paid: &PaymentLog, answers: bool) -> TypedTool {
    let paid = Arc::clone(paid);
    let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |_, args: Value| {
        let to = args["to"].as_str().unwrap().to_owned();
        paid.lock().unwrap().push(to.clone());
        async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            Ok::<_, ToolError>(json!({"to": to}))
        }
    });
    pay.effect_key(&["/to"], Duration::from_secs(3_600))
}

fn plan(paid: &PaymentLog, answers: bool, durable: Durability) -> Plan {
    Plan { tools: vec![pay(paid, answers)], durable, ..Plan::default() }
}

async fn tcp(extra_args: Vec<String>) -> RedisServer {
    RedisServer::start_with(RedisOptions { tcp: true, extra_args, ..RedisOptions::default() }).await
}

async fn pair() -> (RedisServer, RedisServer) {
    let primary = tcp(vec!["--repl-diskless-sync-delay".into(), "0".into()]).await;
    let port = primary.url().trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let replica = tcp(["--replicaof", "127.0.0.1", &port].map(String::from).into()).await;
    until_confirmed(&primary).await;
    (primary, replica)
}

async fn until_confirmed(primary: &RedisServer) {
    let mut connection = primary.connection().await;
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg("confirmed").arg("").arg("PX").arg(1).ignore().cmd("WAIT").arg(1).arg(0);
    let waited = timeout(PATIENCE, pipe.query_async::<(usize,)>(&mut connection)).await;
    waited.expect("the replica follows").expect("the primary answers");
}

fn result(reply: &Value) -> (&str, u64) {
    let result = &reply["results"][0];
    (result["outcome"].as_str().unwrap(), result["attempts"].as_u64().unwrap())
}

fn paid_so_far(paid: &PaymentLog) -> Vec<String> {
    paid.lock().unwrap().clone()
}

fn counted(metrics: &Metrics, line: &str) -> u64 {
    let text = metrics.render();
    let value = text.lines().find_map(|found| found.strip_prefix(line)).map(str::trim);
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

const UNCONFIRMED: &str = "tickfleet_durable_begins_total{durable=\"replica\",outcome=\"unconfirmed\"}";
const RETRIED: &str = "tickfleet_retries_total{reason=\"not_durable\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_with_an_unconfirmed_begin_does_not_run() {
    let (paid, (primary, mut replica)) = (PaymentLog::default(), pair().await);
    let mut fleet = Fleet::start_on(primary, plan(&paid, true, Durability::Replica)).await;
    // A stall of half a second makes a confirmation fail, so the counters can already be above zero afterward.
    fleet.submit(&[("pay", json!({"to": "kim"}))]).await;
    assert_eq!(result(&fleet.reply().await).0, "ok");
    let unconfirmed = counted(&fleet.metrics, UNCONFIRMED);
    let retried = counted(&fleet.metrics, RETRIED);

    replica.pause();
    fleet.submit(&[("pay", json!({"to": "fran"}))]).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply), ("transient", 0), "{reply:#}");
    let error = &reply["results"][0]["error"];
    assert_eq!(error["details"]["reason"], "not_durable");
    let said = error["message"].as_str().unwrap();
    assert!(said.starts_with("No replica of Redis has confirmed the start of this call within 500 ms"), "{said}");
    assert!(said.contains("was not executed (after 4 tries)"), "{said}");
    assert_eq!(paid_so_far(&paid), ["kim"], "what is not confirmed does not run");
    assert_eq!(counted(&fleet.metrics, UNCONFIRMED) - unconfirmed, 4);
    assert_eq!(counted(&fleet.metrics, RETRIED) - retried, 3);

    replica.resume();
    until_confirmed(&fleet.server).await;
    fleet.submit(&[("pay", json!({"to": "fran"}))]).await;
    assert_eq!(result(&fleet.reply().await).0, "ok");
    assert_eq!(paid_so_far(&paid), ["kim", "fran"]);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_call_runs_on_a_retry_after_the_replica_returns() {
    let (paid, (primary, mut replica)) = (PaymentLog::default(), pair().await);
    let retry_delays = RetryDelays::new(vec![Duration::from_millis(500); 20]);
    let plan = Plan { retry_delays, ..plan(&paid, true, Durability::Replica) };
    let mut fleet = Fleet::start_on(primary, plan).await;
    replica.pause();
    fleet.submit(&[("pay", json!({"to": "kim"}))]).await;
    fleet.until("a try that nobody confirms", async |fleet| counted(&fleet.metrics, UNCONFIRMED) > 0).await;
    replica.resume();
    let reply = fleet.reply().await;
    assert_eq!(result(&reply).0, "ok", "{reply:#}");
    assert_eq!(paid_so_far(&paid), ["kim"]);
    fleet.stop().await;
}

/// Parallel reads run one after the other if their begins must be durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_read_runs_only_after_a_replica_has_its_debits() {
    let (primary, mut replica) = pair().await;
    let url = replica.url();
    let debited = Arc::new(Mutex::new(Vec::new()));
    let look = TypedTool::new("look", "Looks.", Effect::Read, {
        let debited = Arc::clone(&debited);
        move |_, _: Value| {
            let (url, debited) = (url.clone(), Arc::clone(&debited));
            async move {
                let store = Store::open(&url, 0, Arc::new(StoreOptions::default())).unwrap();
                let day = Query::Counter(CounterKey::new(limits::DAY, "acme:kelly"));
                let Ok(Answer::Counter(Some(day))) = store.query(day).await else {
                    panic!("the replica lacks the day")
                };
                debited.lock().unwrap().push(day.used);
                Ok::<_, ToolError>(json!({}))
            }
        }
    });
    let plan = Plan { tools: vec![look.durable(Durability::Replica)], ..Plan::default() };
    let mut fleet = Fleet::start_on(primary, plan).await;
    replica.pause();
    fleet.submit(&[("look", json!({}))]).await;
    assert_eq!(result(&fleet.reply().await), ("transient", 0));
    assert!(debited.lock().unwrap().is_empty(), "what is not confirmed does not run");
    replica.resume();
    until_confirmed(&fleet.server).await;
    let call = json!({"name": "look", "arguments": {}});
    fleet.submit_turn(json!({"parallel_reads": true, "calls": [call, call, call]})).await;
    let reply = fleet.reply().await;
    assert!(reply["results"].as_array().unwrap().iter().all(|result| result["outcome"] == "ok"), "{reply:#}");
    let debited = debited.lock().unwrap().clone();
    assert_eq!(debited, [4, 4, 4], "one call before, and three of this turn");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_durability_of_a_tool_overrides_the_fleet() {
    let paid = PaymentLog::default();
    let notes = PaymentLog::default();
    let careless = TypedTool::new("note", "Notes.", Effect::Once, {
        let notes = Arc::clone(&notes);
        move |_, _: Value| {
            notes.lock().unwrap().push("noted".into());
            async { Ok::<_, ToolError>(json!({})) }
        }
    });
    let tools = vec![pay(&paid, true).durable(Durability::Replica), careless.durable(Durability::None)];
    // The server has neither a replica nor an append-only file, so Redis never confirms a begin.
    for durable in [Durability::None, Durability::Disk, Durability::Replica] {
        let mut fleet = Fleet::start(Plan { tools: tools.clone(), ..plan(&paid, true, durable) }).await;
        fleet.submit(&[("pay", json!({"to": "kim"}))]).await;
        assert_eq!(result(&fleet.reply().await), ("transient", 0));
        fleet.submit(&[("note", json!({}))]).await;
        assert_eq!(result(&fleet.reply().await), ("ok", 1));
        fleet.stop().await;
    }
    assert_eq!((paid_so_far(&paid).len(), notes.lock().unwrap().len()), (0, 3));
}

async fn has_waitaof(server: &RedisServer) -> bool {
    let command = redis::cmd("COMMAND").arg("INFO").arg("WAITAOF").to_owned();
    let info: redis::Value = command.query_async(&mut server.connection().await).await.unwrap();
    matches!(info, redis::Value::Array(found) if matches!(found.first(), Some(redis::Value::Array(_))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_runs_only_if_the_server_confirms_its_begin_on_disk() {
    let paid = PaymentLog::default();
    for aof in [true, false] {
        let server = RedisServer::start_with(RedisOptions { appendonly: aof, ..RedisOptions::default() }).await;
        let can = has_waitaof(&server).await && aof;
        let mut fleet = Fleet::start_on(server, plan(&paid, true, Durability::Disk)).await;
        fleet.submit(&[("pay", json!({"to": format!("{aof}")}))]).await;
        let reply = fleet.reply().await;
        let confirmed = "tickfleet_durable_begins_total{durable=\"local\",outcome=\"confirmed\"}";
        if can {
            assert_eq!(result(&reply), ("ok", 1), "{reply:#}");
            assert_eq!(counted(&fleet.metrics, confirmed), 1);
        } else {
            let said = reply["results"][0]["error"]["message"].as_str().unwrap();
            assert!(said.starts_with("Redis cannot confirm the start of this call ('durable: local')"), "{said}");
            assert_eq!(result(&reply), ("transient", 0), "{reply:#}");
        }
        eprintln!("an append-only file: {aof}; whether it was fsynced can be told: {can}");
        assert_eq!(paid.lock().unwrap().drain(..).count(), usize::from(can));
        fleet.stop().await;
    }
}

#[derive(Debug, PartialEq, Eq)]
struct FailedOver {
    before: usize,
    paid: usize,
    outcome: String,
}

/// Kills the worker and the primary. Another worker continues with the replica's data. If `lags` is true, the replica
/// lacks the begin of the payment.
async fn fail_over(durable: Durability, lags: bool) -> FailedOver {
    let paid = PaymentLog::default();
    let trio = &mut SentinelSetup::start(1).await;
    let [first, second] = [false, true].map(|answers| {
        let store = StoreOptions { lease_ms: SHORT_LEASE_MS, ..StoreOptions::default() };
        // A stall of half a second makes a confirmation fail, and the begin is retried.
        let retry_delays = RetryDelays::new(vec![Duration::from_millis(100); 20]);
        Arc::new(Plan { store, retry_delays, ..plan(&paid, answers, durable) })
    });
    let url = trio.url();
    let active = first.active();
    let metrics = Arc::new(Metrics::new().unwrap());
    let store = first.store(&url);
    store.ensure_groups().await.unwrap();
    let scheduling = Shutdown::default();
    let scheduler = first.scheduler(first.store(&url), active.clone(), metrics.clone(), "s");
    let running = tokio::spawn(scheduler.run(scheduling.draining.clone()));
    submit(&store, &trio.servers[0]).await;
    until(async || entries(&store, &trio.servers[0], "ready:normal").await.is_some_and(|count| count > 0)).await;
    trio.replicated(0, 1).await;

    if lags {
        trio.cut_replicas(0).await;
    }
    let worker = KillableProcess::worker_on(&url, Arc::clone(&first), &active, &metrics, "first");
    let is_in_vain = lags && durable == Durability::Replica;
    until(async || if is_in_vain { counted(&metrics, UNCONFIRMED) > 0 } else { !paid.lock().unwrap().is_empty() })
        .await;
    worker.kill();
    let before = paid.lock().unwrap().len();
    trio.servers[0].kill9();
    assert_eq!(trio.another_primary(0).await, 1);
    // Without a replica, the next primary could not confirm a begin, so the old primary returns as a replica.
    trio.servers[0].restart().await;
    trio.replicated(1, 1).await;
    let worker = KillableProcess::worker_on(&url, second, &active, &metrics, "second");
    until(async || entries(&store, &trio.servers[1], "replies:acme:box").await.is_some_and(|count| count > 0)).await;
    let range = redis::cmd("XREVRANGE");
    let key = store.keys().key("replies:acme:box");
    let command = range.clone().arg(key).arg("+").arg("-").to_owned();
    let replies: Vec<(String, std::collections::BTreeMap<String, String>)> =
        command.query_async(&mut trio.servers[1].connection().await).await.unwrap();
    let reply: Value = serde_json::from_str(&replies[0].1["reply"]).unwrap();
    worker.kill();
    scheduling.drain();
    running.await.unwrap().unwrap();
    let outcome = reply["results"][0]["outcome"].as_str().unwrap().to_owned();
    FailedOver { before, paid: paid.lock().unwrap().len(), outcome }
}

async fn submit(store: &Store, server: &RedisServer) {
    let calls = json!([{"name": "pay", "arguments": {"to": "kim"}}]);
    let turn = json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "turn_id": "t", "calls": calls});
    let command =
        redis::cmd("XADD").arg(store.keys().key("turns")).arg("*").arg("turn").arg(turn.to_string()).to_owned();
    let _: String = command.query_async(&mut server.connection().await).await.unwrap();
}

/// `None` if Redis does not respond.
async fn entries(store: &Store, server: &RedisServer, stream: &str) -> Option<usize> {
    let mut connection = tickfleet_testkit::connect(&server.url()).await.ok()?;
    redis::cmd("XLEN").arg(store.keys().key(stream)).query_async(&mut connection).await.ok()
}

async fn until(come: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !come().await {
        assert!(Instant::now() < deadline, "it did not come within {PATIENCE:?}");
        // No event reports the condition, so this polls; the deadline bounds it.
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_lagging_replica_repeats_only_non_durable_payments() {
    let reported = |before, paid, outcome: &str| FailedOver { before, paid, outcome: outcome.into() };
    let (unwaited, lagging, following) = tokio::join!(
        fail_over(Durability::None, true),
        fail_over(Durability::Replica, true),
        fail_over(Durability::Replica, false),
    );
    assert_eq!(unwaited, reported(1, 2, "ok"), "docs/understand/durability.md#measured warns of this");
    assert_eq!(lagging, reported(0, 1, "ok"), "what no replica knows does not run");
    assert_eq!(following, reported(1, 1, "outcome_unknown"), "what it knows is not run again");
}

async fn lost(settings: &[&str], saves_after: Option<usize>) -> usize {
    const TURNS: usize = 200;
    let appendonly = if settings.is_empty() { &["--appendonly", "no"][..] } else { &[] };
    let extra_args = settings.iter().chain(appendonly).map(ToString::to_string).collect();
    let mut server = tcp(extra_args).await;
    let mut connection = server.connection().await;
    for turn in 0..TURNS {
        let command = redis::cmd("XADD").arg("turns").arg("*").arg("n").arg(turn).to_owned();
        let _: String = command.query_async(&mut connection).await.unwrap();
        if saves_after == Some(turn + 1) {
            let () = redis::cmd("SAVE").query_async(&mut connection).await.unwrap();
        }
    }
    // During an fsync, `everysec` lets Redis confirm writes up to two seconds before they reach the file. So this waits
    // until the buffer is empty.
    until(async || {
        let reported: String =
            redis::cmd("INFO").arg("persistence").query_async(&mut connection.clone()).await.unwrap();
        reported.lines().filter_map(|line| line.strip_prefix("aof_buffer_length:")).all(|bytes| bytes == "0")
    })
    .await;
    server.kill9();
    server.restart().await;
    let left: usize = redis::cmd("XLEN").arg("turns").query_async(&mut server.connection().await).await.unwrap();
    TURNS - left
}

#[tokio::test]
async fn data_loss_of_a_killed_redis_matches_the_documentation() {
    let aof = |fsync: &'static str| ["--appendonly", "yes", "--appendfsync", fsync];
    assert_eq!(lost(&[], None).await, 200, "neither an append-only file nor snapshots");
    assert_eq!(lost(&[], Some(150)).await, 50, "a snapshot after 150");
    // The kernel keeps data that the process has written. Only a crash of the machine loses such data.
    for fsync in ["no", "everysec", "always"] {
        assert_eq!(lost(&aof(fsync), None).await, 0, "appendfsync {fsync}");
    }
}

/// `WAIT` waits only for the writes of its own connection, so a repeated begin must write again.
#[tokio::test]
async fn a_repeated_begin_needs_a_new_confirmation() {
    let (primary, mut replica) = pair().await;
    let store = Store::open(&primary.url(), 0, Arc::new(StoreOptions::default())).unwrap();
    let slice = held_slice(&store).await;
    let begin = Begin {
        slice: &slice,
        position: 0,
        by: "n",
        once: true,
        is_durable: false,
        epoch: store.refresh_state().await.unwrap().epoch,
        lease_ms: 1_000,
        streak: None,
        facts: None,
        consent: None,
        claim: None,
        cache: None,
    };
    let is_begun = |result: &BeginResult| matches!(result, BeginResult::Started(_));
    assert!(is_begun(&store.decide(begin.clone()).await.unwrap().result));
    until_confirmed(&primary).await;
    replica.pause();
    let again = async |wait| {
        let mut view = View::default();
        let begins = std::slice::from_ref(&begin);
        let (mut results, confirmed) =
            store.decide_durably(&mut view, begins, Durability::Replica, wait).await.unwrap();
        assert!(is_begun(&results.remove(0).unwrap().result));
        confirmed
    };
    assert_eq!(again(Duration::from_millis(200)).await, Confirmed::NotInTime);
    replica.resume();
    until_confirmed(&primary).await;
    assert_eq!(again(PATIENCE).await, Confirmed::Yes);
}

async fn held_slice(store: &Store) -> Slice {
    store.ensure_groups().await.unwrap();
    let name = TurnName::parse("acme:t").unwrap();
    let now_ms = store.now_ms().await.unwrap();
    let mut turn: Turn = serde_json::from_value(json!({
        "h": {"ag": "kelly", "dl": now_ms + 86_400_000, "dg": "d", "n": 1},
        "q": {"r": "normal"}, "pl": 1, "t": now_ms, "b": 10, "s": {"s": "ready", "upto": 1},
    }))
    .unwrap();
    let call = json!({"t": "pay", "a": "{}"});
    let mut transaction = Transaction::new(store.versions().draw());
    slice::dispatch(&mut transaction, &name, &mut turn, &[call.to_string().into()]);
    store.seam().commit(&[transaction]).await.unwrap().results.remove(0).unwrap();
    let take = TakeRequest { consumer: "w".into(), queues: vec![turn.queue(&name.tenant)], count: 1, wait_ms: 0 };
    let taken = store.seam().take(&take).await.unwrap().remove(0);
    Slice::read(taken.queue, taken.entry, &taken.fields).unwrap()
}
