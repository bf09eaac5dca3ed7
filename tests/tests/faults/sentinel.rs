//! A fleet that finds its Redis through Sentinels. If a primary fails, the fleet continues with the next one.

mod parted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tickfleet_client::{Client, SubmitError};
use tickfleet_core::keys;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{Durability, Effect, Priority};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_protocol::parse_turn;
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::{Pool, Store, StoreError, StoreOptions};
use tickfleet_testkit::{RedisServer, SentinelSetup};
use tickfleet_tests::fleet::{PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::cluster::run_and_epoch;
use super::survival::Gate;

const TURNS: usize = 12;
/// Sentinels detect a dead server after 1 s, and then agree on the next primary.
const RECOVERS_WITHIN: Duration = Duration::from_secs(20);

struct Fleet {
    trio: SentinelSetup,
    gate: Gate,
    client: Client,
    store: Store,
    metrics: Arc<Metrics>,
    parts: Vec<(Shutdown, JoinHandle<()>)>,
}

impl Fleet {
    async fn start() -> Self {
        let trio = SentinelSetup::start(1).await;
        let url = trio.url();
        Self::start_on(trio, url, Durability::None).await
    }

    async fn start_on(trio: SentinelSetup, url: String, durable: Durability) -> Self {
        let gate = Gate::new(true);
        let caps = DefaultCaps { tick_ms: 200, calls_per_tick: 1_000, ..DefaultCaps::default() };
        let plan = Plan {
            tools: vec![gate.tool("act", Effect::Once)],
            slots: TURNS,
            caps,
            durable,
            store: StoreOptions::default(),
            ..Plan::default()
        };
        let active = plan.active();
        let metrics = Arc::new(Metrics::new().unwrap());
        let store = plan.store(&url);
        store.ensure_groups().await.unwrap();
        let scheduling = Shutdown::default();
        let working = Shutdown::default();
        let scheduler = plan.scheduler(plan.store(&url), active.clone(), metrics.clone(), "s");
        let stop = scheduling.draining.clone();
        let scheduler = tokio::spawn(async move { scheduler.run(stop).await.unwrap() });
        let worker = plan.worker(plan.store(&url), active, metrics.clone(), "w", working.now.child_token());
        let until = working.clone();
        let worker = tokio::spawn(async move { worker.run(until).await.unwrap() });
        let client = Client::connect(&url, plan.store.clone()).await.unwrap();
        Self { trio, gate, client, store, metrics, parts: vec![(working, worker), (scheduling, scheduler)] }
    }

    /// A repeated submission is harmless, because an ID is accepted only once.
    async fn submit(&self, prefix: &str) {
        for i in 0..TURNS {
            let id = format!("{prefix}{i}");
            let calls = json!([{"id": "c", "name": "act", "arguments": {"mark": id}}]);
            let turn = json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "turn_id": id, "calls": calls});
            let turn = parse_turn(turn.to_string().as_bytes()).unwrap();
            let deadline = Instant::now() + PATIENCE;
            loop {
                match self.client.submit(turn.clone()).await {
                    Ok(_) => break,
                    Err(SubmitError::Store(error)) if Instant::now() < deadline => drop(error),
                    Err(error) => panic!("{id}: {error}"),
                }
                // Retries while Redis has no primary; the deadline above bounds this.
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn replies(&self, server: usize) -> BTreeMap<String, Vec<Value>> {
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        let command = redis::cmd("XRANGE").arg(self.store.keys().key("replies:acme:box")).arg("-").arg("+").to_owned();
        let entries: Entries = command.query_async(&mut self.redis(server).await).await.unwrap();
        let mut replies: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (_, fields) in entries {
            let reply: Value = serde_json::from_str(&fields["reply"]).unwrap();
            replies.entry(reply["turn_id"].as_str().unwrap().to_owned()).or_default().push(reply);
        }
        replies
    }

    async fn until_replied(&self, server: usize, count: usize) -> BTreeMap<String, Vec<Value>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let replies = self.replies(server).await;
            if replies.len() >= count {
                return replies;
            }
            assert!(Instant::now() < deadline, "{} of {count} turns have a reply", replies.len());
            // The inbox is polled as a whole; the deadline above bounds the wait.
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn redis(&self, server: usize) -> MultiplexedConnection {
        self.trio.servers[server].connection().await
    }

    /// Returns the run ID of the shard's Redis, and the number of epochs.
    async fn epoch(&self, server: usize) -> (String, u64) {
        let command = redis::cmd("HGET").arg(self.store.keys().key("meta")).arg("state").to_owned();
        let state: String = command.query_async(&mut self.redis(server).await).await.unwrap();
        run_and_epoch(&state)
    }

    /// Promotes `server` again if Sentinels on a busy machine revert the promotion. Returns the number of promotions.
    async fn until_led_to(&self, server: usize) -> u64 {
        let mut deadline = Instant::now() + RECOVERS_WITHIN;
        let mut failovers = 0;
        let port = format!(":{}", self.trio.port(server));
        let connection = self.client.stores()[0].connection();
        loop {
            if self.trio.primary().await.is_some_and(|primary| primary != server) {
                self.trio.fail_over_to(server).await;
                (deadline, failovers) = (Instant::now() + RECOVERS_WITHIN, failovers + 1);
                assert!(failovers < 4, "the sentinels do not stay with {port}");
            }
            let asked = self.client.stores()[0].now_ms().await;
            let primary = connection.primary().and_then(Result::ok);
            if asked.is_ok() && primary.as_ref().is_some_and(|place| place.ends_with(&port)) {
                return failovers;
            }
            assert!(Instant::now() < deadline, "{primary:?}, not {port}");
            // The deadline bounds this.
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn moves(&self) -> u64 {
        let text = self.metrics.render();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        assert_eq!(value("tickfleet_redis_primary_missing_seconds"), Some("0"), "{text}");
        value("tickfleet_redis_primary_moves_total").unwrap().parse().unwrap()
    }

    fn runs(&self) -> usize {
        self.gate.runs.lock().unwrap().values().sum()
    }

    async fn stop(self) {
        for (shutdown, running) in self.parts {
            shutdown.drain();
            running.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_answers_each_turn_once_across_a_failover() {
    let mut fleet = Fleet::start().await;
    fleet.submit("before").await;
    fleet.until_replied(0, TURNS).await;
    let before = fleet.epoch(0).await;
    assert_eq!(fleet.moves(), 0);

    // All these calls must run when the primary is killed, and the replica must have their intent records.
    fleet.gate.open.send_replace(false);
    fleet.submit("under-way").await;
    timeout(PATIENCE, async {
        while fleet.runs() < 2 * TURNS {
            // No event reports the runs, so this polls; the timeout bounds it.
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    fleet.trio.replicated(0, 1).await;
    fleet.trio.servers[0].kill9();
    fleet.gate.open.send_replace(true);
    fleet.submit("after").await;

    assert_eq!(fleet.trio.another_primary(0).await, 1);
    let replies = fleet.until_replied(1, 3 * TURNS).await;
    for (turn, replies) in &replies {
        let [reply] = &replies[..] else { panic!("{turn} has {} replies", replies.len()) };
        assert_eq!(outcomes(reply), ["ok"], "{reply:#}");
    }
    let runs = fleet.gate.runs.lock().unwrap().clone();
    assert!(runs.values().all(|runs| *runs == 1), "a call that must run once ran again: {runs:?}");
    let after = fleet.epoch(1).await;
    assert_ne!(after.0, before.0, "the shard calls its Redis as before");
    assert_eq!(after.1, before.1 + 1, "the failover began no epoch, or more than one");
    assert_eq!(fleet.moves(), 1, "connections of one process count a failover once");

    fleet.trio.servers[0].restart().await;
    fleet.trio.replicated(1, 1).await;
    // Until all clients know the new primary, the other server accepts writes that it will lose. So this waits.
    let failovers = fleet.until_led_to(0).await;
    fleet.submit("back").await;
    let replies = fleet.until_replied(0, 4 * TURNS).await;
    assert!(replies.values().all(|replies| replies.len() == 1), "{replies:?}");
    let epochs = fleet.epoch(0).await.1 - after.1;
    // Sentinels may switch back and forth (more epochs). The fleet may miss a short-lived primary (fewer epochs).
    assert!((1..=(2 * failovers).max(2) - 1).contains(&epochs), "{epochs} epochs, {failovers} failovers");
    fleet.stop().await;
}

#[tokio::test]
async fn all_connections_follow_the_promoted_primary() {
    let mut trio = SentinelSetup::start(1).await;
    trio.kill_sentinel(0);
    let store = Store::open(&trio.url(), 0, Arc::new(StoreOptions::default())).unwrap();
    let pool = Pool::open(&trio.url(), 2).unwrap();
    assert_eq!(store.connection().primary(), None, "nobody was asked yet");
    store.ensure_groups().await.unwrap();
    let first = store.connection().primary().unwrap().unwrap();
    assert!(trio.servers[0].url().contains(&first), "{first}");
    let says = pool.sentinels().await;
    let named: Vec<_> = says.iter().map(|said| said.primary.as_deref().ok()).collect();
    assert_eq!(named, [None, Some(first.as_str()), Some(first.as_str())], "{says:?}");

    trio.replicated(0, 1).await;
    trio.servers[0].kill9();
    let deadline = Instant::now() + RECOVERS_WITHIN;
    while let Err(error) = store.ensure_groups().await {
        assert!(Instant::now() < deadline, "{error}");
        // The deadline above bounds the wait.
        sleep(Duration::from_millis(50)).await;
    }
    let second = store.connection().primary().unwrap().unwrap();
    assert!(trio.servers[1].url().contains(&second), "{second}");
    assert_eq!(pool.server().await.unwrap().role, "master");
}

/// The stub always names the server at `port`. Returns the stub's own port.
async fn lagging_sentinel(port: &str) -> u16 {
    sentinel_that_names(watch::Sender::new(port.to_owned()).subscribe()).await
}

/// The stub names the server at the channel's port. Returns the stub's own port.
async fn sentinel_that_names(port: watch::Receiver<String>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let port = port.clone();
            tokio::spawn(async move {
                let mut said = vec![0; 4_096];
                while let Ok(read @ 1..) = stream.read(&mut said).await {
                    let text = String::from_utf8_lossy(&said[..read]).to_uppercase();
                    let own = "+OK\r\n".repeat(text.matches("SETINFO").count());
                    let port = port.borrow().clone();
                    let answer = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
                    let named = if text.contains("GET-MASTER-ADDR") { answer.as_str() } else { "" };
                    // The stub rejects requests for the Sentinel's configuration.
                    let refused = "-NOPERM\r\n".repeat(text.matches("$6\r\nMASTER\r\n").count());
                    stream.write_all(format!("{own}{named}{refused}").as_bytes()).await.unwrap();
                }
            });
        }
    });
    own
}

fn port_of(server: &RedisServer) -> String {
    server.url().trim_end_matches('/').rsplit(':').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_that_reports_itself_as_a_replica_is_not_used_as_primary() {
    let trio = SentinelSetup::start(1).await;
    let lagging = lagging_sentinel(&port_of(&trio.servers[1])).await;
    let url = trio.url().replace("sentinel://", &format!("sentinel://127.0.0.1:{lagging},"));
    let store = Store::open(&url, 0, Arc::new(StoreOptions::default())).unwrap();
    store.ensure_groups().await.unwrap();
    let found = store.connection().primary().unwrap().unwrap();
    assert_eq!(found, format!("127.0.0.1:{}", port_of(&trio.servers[0])));
}

#[tokio::test]
async fn a_replaced_primary_is_abandoned_within_seconds() {
    let options = || tickfleet_testkit::RedisOptions { tcp: true, ..tickfleet_testkit::RedisOptions::default() };
    let old = RedisServer::start_with(options()).await;
    let new = RedisServer::start_with(options()).await;
    let names = watch::Sender::new(port_of(&old));
    let url = format!("redis+sentinel://127.0.0.1:{}/fleet", sentinel_that_names(names.subscribe()).await);
    let store = Store::open(&url, 0, Arc::new(StoreOptions::default())).unwrap();
    let pool = Pool::open(&url, 1).unwrap();
    store.ensure_groups().await.unwrap();
    assert_eq!(pool.server().await.unwrap().role, "master");
    let take = TakeRequest { consumer: "w".into(), queues: vec![keys::ready(Priority::Normal)], count: 1, wait_ms: 50 };
    assert!(store.seam().take(&take).await.unwrap().is_empty());

    names.send_replace(port_of(&new));
    let deadline = Instant::now() + RECOVERS_WITHIN;
    // The reader creates its queue on the server that it reads, so a key on the new primary proves the move.
    while redis::cmd("DBSIZE").query_async::<usize>(&mut new.connection().await).await.unwrap() == 0 {
        assert!(Instant::now() < deadline, "the old primary is still read");
        assert!(store.seam().take(&take).await.unwrap().is_empty());
    }
    store.ensure_groups().await.unwrap();
    let found = store.connection().primary().unwrap().unwrap();
    assert_eq!(found, format!("127.0.0.1:{}", port_of(&new)));
    let connected: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut new.connection().await).await.unwrap();
    let before = connected.lines().count();
    pool.server().await.unwrap();
    let connected: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut new.connection().await).await.unwrap();
    assert_eq!(connected.lines().count(), before + 1, "the pool asks the old primary");
}

#[tokio::test]
async fn a_missing_primary_is_reported_per_sentinel() {
    let replica = RedisServer::start_with(tickfleet_testkit::RedisOptions {
        tcp: true,
        extra_args: ["--replicaof", "127.0.0.1", "1"].map(String::from).into(),
        ..tickfleet_testkit::RedisOptions::default()
    })
    .await;
    let port = port_of(&replica);
    let lagging = lagging_sentinel(&port_of(&replica)).await;
    let holds = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = holds.local_addr().unwrap().port();
    let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{silent},127.0.0.1:{lagging},127.0.0.1:{port}/fleet");
    let store = Store::open(&url, 0, Arc::new(StoreOptions::default())).unwrap();
    let error = store.now_ms().await.unwrap_err();
    assert!(matches!(error, StoreError::Connect { .. }), "{error}");
    let said = error.to_string();
    for expected in [
        "cannot find the primary fleet".to_owned(),
        "127.0.0.1:1: ".to_owned(),
        format!("127.0.0.1:{silent}: no answer within 1s"),
        format!("127.0.0.1:{lagging}: names 127.0.0.1:{port}: it reports the role slave"),
        format!("127.0.0.1:{port}: "),
    ] {
        assert!(said.contains(&expected), "{expected}\n{said}");
    }
    assert!(store.connection().primary().unwrap().is_err());
    drop(holds);
}
