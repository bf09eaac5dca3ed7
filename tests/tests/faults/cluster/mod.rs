//! A fleet of several shards on a Redis Cluster under load, while a primary is killed.

mod moving;
mod parted;
mod router;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_client::{Client, SubmitError};
use tickfleet_model::ids::shard_of;
use tickfleet_model::policy::{DefaultCaps, TenantPolicy};
use tickfleet_model::{Durability, Effect, TenantId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_protocol::parse_turn;
use tickfleet_store::{Store, StoreOptions};
use tickfleet_testkit::Cluster;
use tickfleet_tests::fleet::{PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::survival::Gate;

const SHARDS: u32 = 4;
/// A cluster on a busy machine needs seconds to detect a dead node and to elect a primary.
const RECOVERS_WITHIN: Duration = Duration::from_secs(30);

fn everybody() -> impl Iterator<Item = TenantId> {
    (0..64).map(|i| TenantId::new(format!("t{i}")).unwrap())
}

fn tenants() -> Vec<TenantId> {
    (0..SHARDS).map(|shard| everybody().find(|tenant| shard_of(tenant, SHARDS) == shard).unwrap()).collect()
}

fn options() -> StoreOptions {
    // A long lease survives a stalled machine, so that no outcome becomes unknown.
    StoreOptions { shards: SHARDS, lease_ms: 6_000, ..StoreOptions::default() }
}

/// Repeats the request, because a node on a stalled machine may not respond within one second.
async fn in_the_end<T, E: std::fmt::Display>(ask: impl AsyncFn() -> Result<T, E>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {error}"),
        }
    }
}

struct Fleet {
    cluster: Cluster,
    gate: Gate,
    client: Client,
    metrics: Arc<Metrics>,
    parts: Vec<(Shutdown, JoinHandle<()>)>,
}

impl Fleet {
    async fn start(caps: DefaultCaps) -> Self {
        Self::start_on(Cluster::start(3, 1).await, caps, Durability::None).await
    }

    async fn start_on(cluster: Cluster, caps: DefaultCaps, durable: Durability) -> Self {
        let gate = Gate::new(true);
        let policy = |policy: &mut tickfleet_model::Policy| {
            policy.tenants = everybody().map(|tenant| (tenant, TenantPolicy::default())).collect();
        };
        let plan = Plan {
            tools: vec![gate.tool("act", Effect::Once)],
            caps,
            store: options(),
            policy,
            durable,
            ..Plan::default()
        };
        let active = plan.active();
        let metrics = Arc::new(Metrics::new().unwrap());
        let mut parts = Vec::new();
        for store in Store::open_all(&cluster.url(), &Arc::new(plan.store.clone())).unwrap() {
            in_the_end(async || store.ensure_groups().await).await;
            let scheduling = Shutdown::default();
            let working = Shutdown::default();
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
        let client = in_the_end(async || Client::connect(&cluster.url(), plan.store.clone()).await).await;
        Self { cluster, gate, client, metrics, parts }
    }

    async fn submit(&self, tenant: &TenantId, prefix: &str, count: usize) {
        for i in 0..count {
            submit(&self.client, tenant, &format!("{prefix}{i}")).await;
        }
    }

    /// Each turn must have exactly one reply, and each call must have succeeded.
    async fn until_replied(&self, tenant: &TenantId, count: usize) {
        let said = self.until_ended(tenant, count).await;
        assert!(said.iter().all(|outcome| outcome == "ok"), "{tenant}: {said:?}");
    }

    /// Each turn must have exactly one reply. Returns the outcomes of the calls.
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
            // The inbox is polled as a whole; the deadline above bounds the wait.
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// By turn ID. `None` while the tenant's slot moves.
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

    async fn epoch(&self, tenant: &TenantId) -> (String, u64) {
        let store = self.client.store(tenant);
        let command = redis::cmd("HGET").arg(store.keys().key("meta")).arg("state").to_owned();
        let state: String = command.query_async(&mut store.connection().get().await.unwrap()).await.unwrap();
        run_and_epoch(&state)
    }

    async fn slot(&self, tenant: &TenantId) -> u16 {
        self.cluster.slot(self.client.store(tenant).keys().prefix()).await
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.render();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{name}\n{text}"))
    }

    fn each_ran_once(&self, count: usize) {
        let runs = self.gate.runs.lock().unwrap().clone();
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

/// `state` is a field of `meta`. Returns the run ID of the shard's Redis, and the number of epochs.
pub(super) fn run_and_epoch(state: &str) -> (String, u64) {
    let mut words = state.split(' ').skip(1);
    let run = words.next().unwrap().to_owned();
    let epoch = words.next().unwrap().parse::<u64>().unwrap();
    // The low 32 bits are a time, and the high bits are the number of epochs.
    (run, epoch >> 32)
}

/// Repeats the request, which is harmless because an ID is accepted only once.
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
        // Retries while the slot has no primary or moves; the deadline above bounds this.
        sleep(Duration::from_millis(50)).await;
    }
}

fn plenty() -> DefaultCaps {
    DefaultCaps { tick_ms: 200, calls_per_tick: 1_000, ..DefaultCaps::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_survives_the_loss_of_one_of_three_primaries() {
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
    for tenant in &tenants {
        fleet.submit(tenant, "after", 10).await;
    }
    for tenant in &tenants {
        fleet.until_replied(tenant, 20).await;
    }
    fleet.each_ran_once(20 * tenants.len());
    assert_eq!(fleet.cluster.another_holder(slot, holder).await, holder + 3);
    let after = fleet.epoch(&tenants[0]).await;
    assert_ne!(after.0, before.0, "the shard calls its Redis as before");
    assert_eq!(after.1, before.1 + 1, "the failover began no epoch, or more than one");
    assert_eq!(fleet.metric("tickfleet_state_lost_total"), 0);
    fleet.stop().await;
}
