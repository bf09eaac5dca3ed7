//! A fleet of several shards on a Redis Cluster: a primary is killed, and the slot of a loaded shard moves, key by key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_client::{Client, SubmitError};
use tickfleet_model::ids::shard_of;
use tickfleet_model::policy::{DefaultCaps, TenantPolicy};
use tickfleet_model::{ConsumerId, Effect, TenantId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_protocol::parse_turn;
use tickfleet_store::{Keys, Pool, Store, StoreError, StoreOptions, Watch};
use tickfleet_testkit::Cluster;
use tickfleet_tests::fleet::{PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{CallContext, TypedTool};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Shards of the fleet.
const SHARDS: u32 = 4;
/// What a cluster needs to find a node dead (1.5 s) and to elect the next one, on a busy machine.
const RECOVERS_WITHIN: Duration = Duration::from_secs(30);
/// Calls of an agent in a day, where the cap bites.
const CAP: usize = 10;

#[derive(Deserialize, JsonSchema)]
struct Mark {
    /// What is noted.
    mark: String,
}

#[derive(Serialize, JsonSchema)]
struct Ran {
    attempt: u32,
}

/// What ran, and how often.
type Runs = Arc<Mutex<BTreeMap<String, usize>>>;

/// A tool `act` (once) that notes each run.
fn act(runs: &Runs) -> TypedTool {
    let runs = runs.clone();
    TypedTool::new("act", "Notes that it ran.", Effect::Once, move |context: CallContext, args: Mark| {
        let runs = runs.clone();
        async move {
            *runs.lock().unwrap().entry(args.mark).or_default() += 1;
            Ok(Ran { attempt: context.attempt })
        }
    })
}

/// A tenant of each shard.
fn tenants() -> Vec<TenantId> {
    let names = || (0..).map(|i| TenantId::new(format!("t{i}")).unwrap());
    (0..SHARDS).map(|shard| names().find(|tenant| shard_of(tenant, SHARDS) == shard).unwrap()).collect()
}

fn options() -> StoreOptions {
    StoreOptions { shards: SHARDS, lease_ms: 2_000, ..StoreOptions::default() }
}

/// A scheduler and a worker for each shard, and a producer, that know nothing but the cluster.
struct Fleet {
    cluster: Cluster,
    runs: Runs,
    client: Client,
    metrics: Arc<Metrics>,
    parts: Vec<(Shutdown, JoinHandle<()>)>,
}

impl Fleet {
    async fn start(caps: DefaultCaps) -> Self {
        let (cluster, runs) = (Cluster::start(3, 1).await, Runs::default());
        let policy = |policy: &mut tickfleet_model::Policy| {
            policy.tenants = tenants().into_iter().map(|tenant| (tenant, TenantPolicy::default())).collect();
        };
        let plan = Plan { tools: vec![act(&runs)], caps, store: options(), policy, ..Plan::default() };
        let (active, metrics) = (plan.active(), Arc::new(Metrics::new().unwrap()));
        let mut parts = Vec::new();
        for store in Store::open_all(&cluster.url(), &Arc::new(plan.store.clone())).unwrap() {
            store.ensure_groups().await.unwrap();
            let (scheduling, working) = (Shutdown::default(), Shutdown::default());
            let scheduler = plan.scheduler(store.clone(), active.clone(), metrics.clone(), "s");
            let stop = scheduling.draining.clone();
            let scheduler = tokio::spawn(async move { scheduler.run(stop).await.unwrap() });
            let now = working.now.child_token();
            let worker = plan.worker(store, active.clone(), metrics.clone(), "w", now);
            let until = working.clone();
            let worker = tokio::spawn(async move { worker.run(until).await.unwrap() });
            parts.push((working, worker));
            parts.push((scheduling, scheduler));
        }
        let client = Client::connect(&cluster.url(), plan.store).await.unwrap();
        Self { cluster, runs, client, metrics, parts }
    }

    /// Submits `count` turns `<prefix>0…` of a tenant until each is taken in.
    async fn submit(&self, tenant: &TenantId, prefix: &str, count: usize) {
        for i in 0..count {
            submit(&self.client, tenant, &format!("{prefix}{i}")).await;
        }
    }

    /// Waits until so many turns of a tenant have a reply; each has one, and it is good.
    async fn until_replied(&self, tenant: &TenantId, count: usize) {
        let said = self.until_ended(tenant, count).await;
        assert!(said.iter().all(|outcome| outcome == "ok"), "{tenant}: {said:?}");
    }

    /// Waits until so many turns of a tenant have a reply; each has one. Answers the outcomes of their calls.
    async fn until_ended(&self, tenant: &TenantId, count: usize) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let replies = self.replies(tenant).await.unwrap_or_default();
            if replies.len() >= count {
                for (turn, replies) in &replies {
                    assert_eq!(replies.len(), 1, "{turn} has another number of replies");
                }
                let said = replies.values().flatten().flat_map(|reply| outcomes(reply));
                return said.map(str::to_owned).collect();
            }
            assert!(Instant::now() < deadline, "{tenant}: {} of {count} turns have a reply", replies.len());
            // The inbox is read as a whole; bounded by the deadline above.
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// All replies of a tenant, by turn; none while its slot is on its way.
    async fn replies(&self, tenant: &TenantId) -> Option<BTreeMap<String, Vec<Value>>> {
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        let store = self.client.store(tenant);
        let key = store.keys().key(format!("replies:{tenant}:box"));
        let command = redis::cmd("XRANGE").arg(key).arg("-").arg("+").to_owned();
        let mut connection = store.connection().get().await.ok()?;
        let entries = command.query_async::<Entries>(&mut connection).await.ok()?;
        let mut replies: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (_, fields) in entries {
            let reply: Value = serde_json::from_str(&fields["reply"]).unwrap();
            replies.entry(reply["turn_id"].as_str().unwrap().to_owned()).or_default().push(reply);
        }
        Some(replies)
    }

    /// What a shard calls its Redis, and how often that has changed.
    async fn epoch(&self, tenant: &TenantId) -> (String, u64) {
        let store = self.client.store(tenant);
        let command = redis::cmd("HMGET").arg(store.keys().key("meta")).arg(&["run_id", "epoch"]).to_owned();
        command.query_async(&mut store.connection().get().await.unwrap()).await.unwrap()
    }

    async fn slot(&self, tenant: &TenantId) -> u16 {
        self.cluster.slot(self.client.store(tenant).keys().prefix()).await
    }

    /// The value of a metric of the schedulers and workers.
    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.render();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{name}\n{text}"))
    }

    fn each_ran_once(&self, count: usize) {
        let runs = self.runs.lock().unwrap().clone();
        assert!(runs.values().all(|runs| *runs == 1), "a call that must run once ran again: {runs:?}");
        assert_eq!(runs.len(), count);
    }

    async fn stop(self) {
        for (shutdown, running) in self.parts {
            shutdown.drain();
            running.await.unwrap();
        }
    }
}

/// Submits a turn of one call until it is taken in: one of the same id is taken in once.
async fn submit(client: &Client, tenant: &TenantId, id: &str) {
    let calls = json!([{"id": "c", "name": "act", "arguments": {"mark": format!("{tenant}/{id}")}}]);
    let turn = json!({"tenant": tenant, "agent": "kelly", "reply_to": "box", "turn_id": id, "calls": calls});
    let turn = parse_turn(turn.to_string().as_bytes()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match client.submit(turn.clone()).await {
            Ok(_) => return,
            Err(SubmitError::Store(error)) if Instant::now() < deadline => drop(error),
            Err(error) => panic!("{id}: {error}"),
        }
        // While there is no primary, or the slot is on its way; bounded by the deadline above.
        sleep(Duration::from_millis(50)).await;
    }
}

fn plenty() -> DefaultCaps {
    DefaultCaps { tick_ms: 200, calls_per_tick: 1_000, ..DefaultCaps::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_over_three_primaries_goes_on_when_one_of_them_is_killed() {
    let mut fleet = Fleet::start(plenty()).await;
    let tenants = tenants();
    for tenant in &tenants {
        fleet.submit(tenant, "before", 10).await;
    }
    for tenant in &tenants {
        fleet.until_replied(tenant, 10).await;
    }
    let slot = fleet.slot(&tenants[0]).await;
    let holder = fleet.cluster.holder(slot).await.unwrap();
    let before = fleet.epoch(&tenants[0]).await;
    assert_eq!(fleet.metric("tickfleet_redis_primary_moves_total"), 0);

    fleet.cluster.replicated(holder, 1).await;
    fleet.cluster.servers[holder].kill9();
    let killed = Instant::now();
    for tenant in &tenants {
        fleet.submit(tenant, "after", 10).await;
    }
    let recovered = killed.elapsed();
    eprintln!("a primary was killed; after {recovered:?} all that was submitted then had been taken in");
    assert!(recovered < RECOVERS_WITHIN, "{recovered:?}");
    for tenant in &tenants {
        fleet.until_replied(tenant, 20).await;
    }
    eprintln!("after {:?} all had their replies", killed.elapsed());
    fleet.each_ran_once(20 * tenants.len());
    assert_eq!(fleet.cluster.another_holder(slot, holder).await, holder + 3);
    let after = fleet.epoch(&tenants[0]).await;
    assert_ne!(after.0, before.0, "the shard calls its Redis as before");
    assert_eq!(after.1, before.1 + 1, "the failover began no epoch, or more than one");
    assert_eq!(fleet.metric("tickfleet_state_lost_total"), 0);
    fleet.stop().await;
}

/// Moves the slot of a loaded shard in random order, with waits in between so that turns come in at every state.
async fn move_under_load(fleet: &Fleet, slot: u16, from: usize, to: usize) {
    let cluster = &fleet.cluster;
    let mut order = StdRng::seed_from_u64(14);
    cluster.begin_to_move(slot, from, to).await;
    loop {
        let mut keys = cluster.keys_in(slot, from).await;
        if keys.is_empty() {
            break;
        }
        keys.shuffle(&mut order);
        for part in keys.chunks(keys.len().div_ceil(10)) {
            cluster.move_keys(part, from, to).await;
            // The load shall meet each state between.
            sleep(Duration::from_millis(50)).await;
        }
    }
    cluster.end_move(slot, from, to).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_of_a_loaded_shard_moves_key_by_key_and_nothing_is_lost_and_caps_hold() {
    // One day for the whole test: what is admitted is what the cap allows, wherever the counters are.
    let caps = DefaultCaps { max_actions_per_day: u32::try_from(CAP).unwrap(), ..plenty() };
    let fleet = Fleet::start(caps).await;
    let (tenant, other) = (tenants()[0].clone(), tenants()[1].clone());
    let slot = fleet.slot(&tenant).await;
    let from = fleet.cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    fleet.submit(&tenant, "before", 4).await;
    fleet.until_replied(&tenant, 4).await;
    let before = fleet.epoch(&tenant).await;

    // Turns come in all the time, three times as many as the cap allows.
    let (client, loaded) = (fleet.client.clone(), tenant.clone());
    let load = tokio::spawn(async move {
        for i in 0..30 {
            submit(&client, &loaded, &format!("during{i}")).await;
            // Spread over the time that the move takes.
            sleep(Duration::from_millis(20)).await;
        }
    });
    move_under_load(&fleet, slot, from, to).await;
    let moved = Instant::now();
    load.await.unwrap();
    let said = fleet.until_ended(&tenant, 4 + 30).await;
    eprintln!("{:?} after the move all had their replies", moved.elapsed());
    assert_eq!(fleet.cluster.another_holder(slot, from).await, to);
    let ran = said.iter().filter(|outcome| *outcome == "ok").count();
    assert_eq!(ran, CAP, "the cap holds, and is used up: {said:?}");
    assert!(said.iter().all(|outcome| matches!(outcome.as_str(), "ok" | "daily_cap_reached" | "capped")), "{said:?}");
    // The others were not held up.
    fleet.submit(&other, "others", 3).await;
    fleet.until_replied(&other, 3).await;
    fleet.each_ran_once(CAP + 3);
    let after = fleet.epoch(&tenant).await;
    assert_eq!(after.1, before.1 + 1, "another server is another epoch");
    assert_eq!(fleet.metric("tickfleet_state_lost_total"), 0, "streams that move are not lost");
    assert!(fleet.metric("tickfleet_redis_turned_away_total{answer=\"ASK\"}") > 0);
    assert!(fleet.metric("tickfleet_redis_turned_away_total{answer=\"MOVED\"}") > 0);
    fleet.stop().await;
}

#[tokio::test]
async fn a_script_that_followed_ask_would_forget_what_was_used() {
    // The sabotage of rule 24, on purpose: what a library that follows `ASK` by itself does.
    let cluster = Cluster::start(3, 0).await;
    let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
    store.ensure_groups().await.unwrap();
    let prefix = store.keys().prefix().to_owned();
    let slot = cluster.slot(&prefix).await;
    let from = cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    let (budget, script) = (format!("{prefix}budget"), "#!lua\nreturn redis.call('INCR', KEYS[1] .. 'budget')");
    let eval = redis::cmd("EVAL").arg(script).arg(1).arg(&prefix).to_owned();
    let mut source = cluster.servers[from].connection().await;
    let () = redis::cmd("SET").arg(&budget).arg(10).query_async(&mut source).await.unwrap();
    cluster.begin_to_move(slot, from, to).await;

    let refused = eval.query_async::<i64>(&mut source).await.unwrap_err();
    assert_eq!(refused.code(), Some("ASK"), "{refused}");
    let asked = Instant::now();
    let waited = store.ensure_groups().await.unwrap_err();
    let StoreError::Verb { source, .. } = &waited else { panic!("{waited}") };
    assert_eq!(source.code(), Some("ASK"), "{waited}");
    assert!(asked.elapsed() < Duration::from_secs(5), "the wait is bounded: {:?}", asked.elapsed());

    let mut target = cluster.servers[to].connection().await;
    let mut follows = redis::pipe();
    let followed: (i64,) = follows.cmd("ASKING").ignore().add_command(eval).query_async(&mut target).await.unwrap();
    assert_eq!(followed, (1,), "ten were used up, and the script that followed counts from nothing");
}

/// The word by which a server said that a key is elsewhere.
fn sent_away(error: &StoreError) -> Option<&str> {
    if let StoreError::Verb { source, .. } = error { source.code() } else { None }
}

#[tokio::test]
async fn what_is_on_its_way_is_not_told_as_missing() {
    let cluster = Cluster::start(3, 0).await;
    let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
    store.ensure_groups().await.unwrap();
    store.announce("policy", None, false).await.unwrap();
    let mut watch = Watch::new(store.connection().clone(), store.keys().clone());
    assert_eq!(watch.look().await.unwrap().policy_generation, 1);
    let slot = cluster.slot(store.keys().prefix()).await;
    let from = cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, from, to).await;
    let keys = cluster.keys_in(slot, from).await;
    cluster.move_keys(&keys, from, to).await;
    assert_eq!(sent_away(&watch.look().await.unwrap_err()), Some("ASK"));
    cluster.end_move(slot, from, to).await;
    // Its own connection hears it from the old primary, and makes the next one.
    assert_eq!(sent_away(&watch.look().await.unwrap_err()), Some("MOVED"));
    assert_eq!(watch.look().await.unwrap().policy_generation, 1);
}

#[tokio::test]
async fn a_waiting_reader_hears_that_its_slot_has_moved() {
    let cluster = Cluster::start(3, 0).await;
    let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
    store.ensure_groups().await.unwrap();
    let slot = cluster.slot(store.keys().prefix()).await;
    let from = cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    let first = store.connection().primary().unwrap().unwrap();
    assert_eq!(first, cluster.address(from));

    let mut reader = store.reader(&ConsumerId::new("w").unwrap(), Duration::from_secs(20));
    let ready = ["ready:normal".to_owned()];
    let reads = ready.clone();
    let waiting = tokio::spawn(async move {
        let (asked, answer) = (Instant::now(), reader.wait(&reads, 1).await);
        (reader, answer.map(|entries| entries.len()).map_err(|error| error.to_string()), asked.elapsed())
    });
    // The reader shall wait before its streams move.
    sleep(Duration::from_millis(300)).await;
    cluster.begin_to_move(slot, from, to).await;
    let keys = cluster.keys_in(slot, from).await;
    cluster.move_keys(&keys, from, to).await;
    cluster.end_move(slot, from, to).await;
    let (mut reader, answer, waited) = waiting.await.unwrap();
    assert!(answer.is_err() && waited < Duration::from_secs(15), "{answer:?} after {waited:?}");
    assert!(!answer.unwrap_err().contains("gone"), "what moves is not lost");
    assert!(reader.is_fresh(), "it would wait where nothing comes any more");

    let deadline = Instant::now() + RECOVERS_WITHIN;
    while reader.take(&ready[0], 1).await.is_err() {
        assert!(Instant::now() < deadline, "the reader does not find the next holder");
        // While views differ; bounded by the deadline.
        sleep(Duration::from_millis(50)).await;
    }
    store.ensure_groups().await.unwrap();
    assert_eq!(store.connection().primary().unwrap().unwrap(), cluster.address(to));
    let pool = Pool::open(&cluster.url(), 1).unwrap();
    let keys: Vec<Keys> = (0..SHARDS).map(|shard| Keys::new("tickfleet", shard)).collect();
    let view = pool.cluster(&keys).await.unwrap();
    let holders: Vec<&String> = view.holders.iter().map(|holder| &holder.address).collect();
    assert_eq!(holders.len(), 3, "{view:?}");
    assert_eq!(view.holders.iter().map(|holder| holder.slots).sum::<u32>(), 16_384);
    for said in &view.nodes {
        let primaries = said.primaries.clone().unwrap();
        assert_eq!(primaries[0], Some(cluster.address(to)), "{said:?}");
    }
    assert_eq!(pool.at(&keys[0]).unwrap().server().await.unwrap().mode, "cluster");
}

#[tokio::test]
async fn hosts_that_are_announced_are_used_and_a_node_without_an_address_is_the_one_that_was_asked() {
    let cluster = Cluster::start(3, 0).await;
    for (endpoint, host) in [("hostname", "localhost"), ("unknown-endpoint", "127.0.0.1")] {
        for server in &cluster.servers {
            let mut connection = server.connection().await;
            for (name, value) in
                [("cluster-announce-hostname", "localhost"), ("cluster-preferred-endpoint-type", endpoint)]
            {
                let mut set = redis::cmd("CONFIG");
                set.arg("SET").arg(name).arg(value);
                let () = set.query_async(&mut connection).await.unwrap();
            }
        }
        let deadline = Instant::now() + RECOVERS_WITHIN;
        loop {
            let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
            store.ensure_groups().await.unwrap();
            let told = store.connection().primary().unwrap().unwrap();
            if told.starts_with(&format!("{host}:")) {
                break;
            }
            assert!(Instant::now() < deadline, "{endpoint}: {told}");
            // Names come round among the nodes; bounded by the deadline.
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test]
async fn why_nobody_holds_a_slot_is_told_node_by_node_and_no_search_is_endless() {
    let mut cluster = Cluster::start(3, 0).await;
    let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
    let holder = cluster.holder(cluster.slot(store.keys().prefix()).await).await.unwrap();
    cluster.servers[holder].kill9();
    let asked = Instant::now();
    let error = store.now_ms().await.unwrap_err().to_string();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    for expected in ["no node leads to the holder of slot ", &format!("names {}: ", cluster.address(holder)), ", too"] {
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    assert!(store.connection().primary().unwrap().is_err());
    let alone = tickfleet_testkit::RedisServer::start_with(tickfleet_testkit::RedisOptions {
        tcp: true,
        ..tickfleet_testkit::RedisOptions::default()
    })
    .await;
    let url = alone.url().replace("redis://", "redis+cluster://");
    let error = Store::open(&url, 0, Arc::new(options())).unwrap().now_ms().await.unwrap_err().to_string();
    assert!(error.contains("cluster support disabled"), "{error}");
}
