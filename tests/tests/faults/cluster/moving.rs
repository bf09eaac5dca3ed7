//! A slot moves to another primary, key by key. A server with only a part of the keys must not decide.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tickfleet_core::keys::{self, limits};
use tickfleet_core::{CounterKey, CounterState, Query, Value};
use tickfleet_engine::rules;
use tickfleet_model::ids::shard_of;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{Store, StoreError, Watch};
use tickfleet_testkit::Cluster;
use tickfleet_tests::fleet::PATIENCE;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{Fleet, SHARDS, everybody, options, plenty, submit, tenants};

const CAP: usize = 10;
const LONG_TICK_MS: i64 = 600_000;

impl Fleet {
    fn load(&self, tenant: &TenantId, count: usize) -> JoinHandle<()> {
        let client = self.client.clone();
        let tenant = tenant.clone();
        tokio::spawn(async move {
            for i in 0..count {
                submit(&client, &tenant, &format!("during{i}")).await;
                // Paces the load: one turn every 20 ms.
                sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

/// Moves keys in random order, with pauses, so that turns arrive in every state of the move.
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
            // Turns must arrive in this state of the move.
            sleep(Duration::from_millis(50)).await;
        }
    }
    cluster.end_move(slot, from, to).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_a_loaded_slot_key_by_key_loses_nothing_and_keeps_caps() {
    // The test is shorter than a day, so only the cap limits admissions.
    let caps = DefaultCaps { max_actions_per_day: u32::try_from(CAP).unwrap(), ..plenty() };
    let fleet = Fleet::start(caps).await;
    let tenant = tenants()[0].clone();
    let other = tenants()[1].clone();
    let slot = fleet.slot(&tenant).await;
    let from = fleet.cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    fleet.submit(&tenant, "before", 4).await;
    fleet.until_replied(&tenant, 4).await;
    let before = fleet.epoch(&tenant).await;

    let load = fleet.load(&tenant, 30);
    move_under_load(&fleet, slot, from, to).await;
    let moved = Instant::now();
    load.await.unwrap();
    let said = fleet.until_ended(&tenant, 4 + 30).await;
    eprintln!("{:?} after the move all had their replies", moved.elapsed());
    assert_eq!(fleet.cluster.another_holder(slot, from).await, to);
    let ran = said.iter().filter(|outcome| *outcome == "ok").count();
    assert_eq!(ran, CAP, "the cap holds, and is used up: {said:?}");
    assert!(said.iter().all(|outcome| matches!(outcome.as_str(), "ok" | "daily_cap_reached" | "capped")), "{said:?}");
    fleet.submit(&other, "others", 3).await;
    fleet.until_replied(&other, 3).await;
    fleet.each_ran_once(CAP + 3);
    let after = fleet.epoch(&tenant).await;
    assert_eq!(after.1, before.1 + 1, "another server is another epoch");
    assert_eq!(fleet.metric("tickfleet_state_lost_total"), 0, "streams that move are not lost");
    assert!(fleet.metric("tickfleet_redis_redirects_total{response=\"ASK\"}") > 0);
    assert!(fleet.metric("tickfleet_redis_redirects_total{response=\"MOVED\"}") > 0);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_a_loaded_slot_as_a_whole_loses_nothing_and_keeps_caps() {
    let caps = DefaultCaps { max_actions_per_day: u32::try_from(CAP).unwrap(), ..plenty() };
    let fleet = Fleet::start(caps).await;
    let tenant = tenants()[0].clone();
    let slot = fleet.slot(&tenant).await;
    let from = fleet.cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    fleet.submit(&tenant, "before", 4).await;
    fleet.until_replied(&tenant, 4).await;
    let load = fleet.load(&tenant, 30);
    if !fleet.cluster.move_whole(slot, from, to).await {
        eprintln!("this server moves slots key by key only: nothing is held here");
        load.abort();
        return;
    }
    let moved = Instant::now();
    load.await.unwrap();
    let said = fleet.until_ended(&tenant, 4 + 30).await;
    eprintln!("{:?} after the move all had their replies", moved.elapsed());
    let ran = said.iter().filter(|outcome| *outcome == "ok").count();
    assert_eq!(ran, CAP, "the cap holds, and is used up: {said:?}");
    fleet.each_ran_once(CAP);
    assert_eq!(fleet.metric("tickfleet_state_lost_total"), 0, "streams that move are not lost");
    fleet.stop().await;
}

struct LongWindow<'a> {
    fleet: &'a Fleet,
    tenant: TenantId,
    submitted: usize,
}

impl<'a> LongWindow<'a> {
    /// Selects the tenant with the most time left in its window.
    async fn find(fleet: &'a Fleet) -> Self {
        let now_ms = fleet.client.store(&tenants()[0]).now_ms().await.unwrap();
        let since = |tenant: &TenantId| {
            let stagger_ms = rules::stagger_ms(tenant, &AgentId::new("kelly").unwrap(), LONG_TICK_MS);
            (now_ms - stagger_ms).rem_euclid(LONG_TICK_MS)
        };
        let tenant = everybody().filter(|tenant| shard_of(tenant, SHARDS) == 0).min_by_key(since).unwrap();
        assert!(since(&tenant) < LONG_TICK_MS / 2, "no window lasts");
        Self { fleet, tenant, submitted: 0 }
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &str, key: &str, more: &[&str]) -> T {
        let store = self.fleet.client.store(&self.tenant);
        let command = redis::cmd(command).arg(store.keys().key(key)).arg(more).to_owned();
        command.query_async(&mut store.connection().get().await.unwrap()).await.unwrap()
    }

    fn counter(&self) -> CounterKey {
        CounterKey::new(limits::TICK, format!("{}:kelly", self.tenant))
    }

    async fn budget(&self) -> CounterState {
        let query = Query::Counter(self.counter());
        let Value::Counter(Some(state)) = self.fleet.client.store(&self.tenant).query(query).await.unwrap() else {
            panic!("nothing is counted")
        };
        state
    }

    async fn waiting(&self) -> usize {
        self.ask("ZCARD", &keys::throttle_queue(&self.counter()).to_string(), &[]).await
    }

    async fn settled(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let replied = self.fleet.replies(&self.tenant).await.unwrap_or_default().len();
            let waiting = self.waiting().await;
            if replied + waiting == self.submitted {
                return replied;
            }
            assert!(Instant::now() < deadline, "{replied} replied and {waiting} wait, of {}", self.submitted);
            // No event reports the end of a turn, so this polls.
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn let_it_end(&self) {
        let state: String = self.ask("HGET", "meta", &["state"]).await;
        let (offset_ms, others) = state.split_once(' ').unwrap();
        let state = format!("{} {others}", offset_ms.parse::<i64>().unwrap() + LONG_TICK_MS);
        let _: u64 = self.ask("HSET", "meta", &["state", &state]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_move_during_a_window_keeps_its_cap_and_queue() {
    let per_tick = u32::try_from(CAP).unwrap();
    let fleet = Fleet::start(DefaultCaps { tick_ms: LONG_TICK_MS, calls_per_tick: per_tick, ..plenty() }).await;
    let mut window = LongWindow::find(&fleet).await;
    let tenant = window.tenant.clone();
    let slot = fleet.slot(&tenant).await;
    let from = fleet.cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    fleet.submit(&tenant, "before", 4).await;
    fleet.until_replied(&tenant, 4).await;
    let before = window.budget().await;
    assert_eq!(before.used, 4);

    let load = fleet.load(&tenant, 30);
    move_under_load(&fleet, slot, from, to).await;
    load.await.unwrap();
    fleet.submit(&tenant, "after", 1).await;
    window.submitted = 4 + 30 + 1;
    let admitted = window.settled().await;
    assert!((4..=CAP).contains(&admitted), "{admitted} were admitted in a window for {CAP}");
    let after = window.budget().await;
    assert_eq!((after.used, after.ends_ms), (admitted as u64, before.ends_ms), "{after:?}");
    let timer: i64 = window.ask("ZSCORE", "timers", &[&keys::throttle_timer(&window.counter())]).await;
    assert!(timer <= before.ends_ms, "the throttle queue is looked at when the window has ended, or before");

    let mut replied = admitted;
    while replied < window.submitted {
        window.let_it_end().await;
        let next = (replied + CAP).min(window.submitted);
        fleet.until_replied(&tenant, next).await;
        assert_eq!(window.settled().await, next, "another number than the cap was released");
        replied = next;
    }
    fleet.each_ran_once(window.submitted);
    assert_eq!(fleet.metric("tickfleet_state_lost_total"), 0, "streams that move are not lost");
    fleet.stop().await;
}

#[tokio::test]
async fn a_script_that_follows_an_ask_redirect_loses_its_counter() {
    // Follows `ASK` on purpose, as some libraries do.
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
    let waited = store.ensure_groups().await.unwrap_err();
    let StoreError::Verb { source, .. } = &waited else { panic!("{waited}") };
    assert_eq!(source.code(), Some("ASK"), "{waited}");

    let mut target = cluster.servers[to].connection().await;
    let mut follows = redis::pipe();
    let followed: (i64,) = follows.cmd("ASKING").ignore().add_command(eval).query_async(&mut target).await.unwrap();
    assert_eq!(followed, (1,), "ten were used up, and the script that followed counts from nothing");
}

fn sent_away(error: &StoreError) -> Option<&str> {
    if let StoreError::Verb { source, .. } = error { source.code() } else { None }
}

#[tokio::test]
async fn a_watch_during_a_slot_move_reports_no_missing_keys() {
    let cluster = Cluster::start(3, 0).await;
    let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
    store.ensure_groups().await.unwrap();
    store.announce("policy", None, false).await.unwrap();
    let mut watch = Watch::new(store.clone());
    let generation = watch.poll().await.unwrap().policy_generation;
    assert_ne!(generation, 0);
    let slot = cluster.slot(store.keys().prefix()).await;
    let from = cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, from, to).await;
    let keys = cluster.keys_in(slot, from).await;
    cluster.move_keys(&keys, from, to).await;
    assert_eq!(sent_away(&watch.poll().await.unwrap_err()), Some("ASK"));
    cluster.end_move(slot, from, to).await;
    assert_eq!(sent_away(&watch.poll().await.unwrap_err()), Some("MOVED"));
    assert_eq!(watch.poll().await.unwrap().policy_generation, generation);
}
