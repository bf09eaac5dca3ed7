//! With any settings that the loader accepts, the work of a killed worker must be redelivered. The test sets the time.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scheduler::Options;
use serde_json::json;
use tickfleet_config::{Settings, Sources};
use tickfleet_core::keys::{self, TurnName};
use tickfleet_core::recovery::Lease;
use tickfleet_core::recovery::reap::{HeldEntry, Reap, ReapResult};
use tickfleet_core::turn::Turn;
use tickfleet_core::turn::slice::dispatch;
use tickfleet_core::workers::{Heartbeat, Liveness, ReapPermit, RequestReapPermit, Role, Slots};
use tickfleet_core::{Context, Transaction, View};
use tickfleet_model::{Call, ConsumerId, Priority};
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::seam::memory::{ManualClock, MemoryOptions, MemoryStore};
use tickfleet_store::{Store, StoreOptions};

const DRAWS: u64 = 40;
const START_MS: i64 = 1_767_571_200_000;

fn any_of<T: Copy>(rng: &mut StdRng, values: &[T]) -> T {
    values[rng.random_range(0..values.len())]
}

fn drawn(rng: &mut StdRng) -> String {
    const MS: [u64; 14] =
        [10, 100, 499, 500, 501, 1_000, 2_000, 3_000, 10_000, 15_000, 60_000, 90_000, 300_000, 600_000];
    let mut ms = |from: u64, upto: u64| {
        let edges: Vec<u64> = MS.into_iter().chain([from, upto]).filter(|ms| (from..=upto).contains(ms)).collect();
        if rng.random_bool(0.7) { any_of(rng, &edges) } else { rng.random_range(from..=upto) }
    };
    let lease = ms(1_000, 600_000);
    let drain = ms((lease / 4).max(1_000), 3_600_000);
    let reap = ms(10, lease);
    let poll = ms(1, 60_000);
    let collect = ms(100, 600_000);
    let records = ms(1_000, 600_000);
    let tick = ms(poll.max(100), 3_600_000);
    let dedupe = ms(records, 900_000);
    let slots = any_of(rng, &[1, 2, 32, 10_000]);
    let batch = any_of(rng, &[1, 2, 256]);
    format!(
        "worker: {{lease: {lease}ms, drain: {drain}ms, slots: {slots}}}\n\
         scheduler: {{batch: {batch}, tick_poll: {poll}ms, collect_every: {collect}ms, reap_every: {reap}ms}}\n\
         caps: {{tick: {tick}ms}}\nretention: {{records: {records}ms, dedupe_for: {dedupe}ms}}\n"
    )
}

fn loaded(text: &str) -> Option<Settings> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tickfleet.yaml"), text).unwrap();
    let tools = ["echo", "sleep", "fail", "fail_once", "delegate_task"].into_iter();
    let tools = tools.chain(tickfleet_model::policy::TEAM_TOOLS).map(String::from).collect();
    let handlers = ["note".to_owned()].into();
    let sources = Sources {
        dir: Some(dir.path().to_owned()),
        built_in_tools: tools,
        built_in_handlers: handlers,
        ..Sources::default()
    };
    tickfleet_config::load(&sources).ok().map(|configuration| configuration.settings)
}

struct Shard {
    store: Store,
    clock: Arc<ManualClock>,
    worker: ConsumerId,
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}

impl Shard {
    async fn new(settings: &Settings) -> Self {
        let clock = Arc::new(ManualClock::new(START_MS));
        let lease_ms = ms(settings.worker.lease);
        let memory = MemoryOptions { clock: clock.clone(), lease_ms, ..MemoryOptions::default() };
        let options = StoreOptions { lease_ms, ..StoreOptions::default() };
        let store = Store::in_memory(MemoryStore::new(memory), 0, Arc::new(options));
        store.ensure_groups().await.unwrap();
        Self { store, clock, worker: ConsumerId::new("w").unwrap() }
    }

    async fn advance(&self, by: Duration) {
        self.clock.step(ms(by));
        self.store.refresh_state().await.unwrap();
    }

    async fn beat(&self) {
        let role = Role::Worker { worker: "w".into(), slots: Slots::default() };
        let lease_ms = self.store.options().lease_ms;
        self.store
            .decide(Heartbeat { consumer: self.worker.clone(), role, lease_ms, policy: String::new() })
            .await
            .unwrap();
    }

    async fn lease(&self) -> HeldEntry {
        let name = TurnName::parse("acme:t1").unwrap();
        let mut turn: Turn = serde_json::from_value(json!({
            "h": {"ag": "kelly", "dl": i64::MAX, "dg": "d", "n": 1},
            "q": {"r": "normal"}, "pl": 1, "t": START_MS, "b": 10, "s": {"s": "ready", "upto": 1},
        }))
        .unwrap();
        let mut transaction = Transaction::new(self.store.versions().draw());
        let call = Call { provider_id: None, tool: "echo".into(), arguments: "{}".into() };
        dispatch(&mut transaction, &name, &mut turn, &[serde_json::to_vec(&call).unwrap().into()]);
        self.store.seam().commit(&[transaction]).await.unwrap().results.remove(0).unwrap();
        self.beat().await;
        let queues = vec![keys::ready(Priority::Normal)];
        let take = TakeRequest { consumer: self.worker.as_str().into(), queues, count: 1, wait_ms: 0 };
        let taken = self.store.seam().take(&take).await.unwrap().remove(0);
        HeldEntry { queue: taken.queue, entry: taken.entry, fields: taken.fields }
    }

    /// Returns true if the worker's slice was redelivered.
    async fn reap(&self, period: Duration, held: Option<&HeldEntry>) -> bool {
        let may = RequestReapPermit { lease_ms: self.store.options().lease_ms, every_ms: ms(period) / 4 * 3 };
        if self.store.decide(may).await.unwrap().result != ReapPermit::Granted {
            return false;
        }
        let liveness = |view: &View, context: &Context| Liveness::of(&self.worker, view, context.now_ms);
        let liveness = self.store.evaluate(&mut View::default(), liveness).await.unwrap();
        let (Some(lease), Some(held)) = (Lease::ended(&self.worker, &liveness), held) else { return false };
        let consumer = self.worker.as_str().into();
        let bounds = self.store.bounds();
        let reap = Reap { consumer, lease, held: vec![held.clone()], bounds: &bounds };
        matches!(self.store.decide(reap).await.unwrap().result, ReapResult::Redelivered(_))
    }
}

#[tokio::test]
async fn the_work_of_a_killed_worker_is_redelivered_under_all_valid_settings() {
    let mut taken = 0;
    let mut slow = 0;
    for seed in 0..DRAWS {
        let mut rng = StdRng::seed_from_u64(seed);
        let text = drawn(&mut rng);
        let Some(settings) = loaded(&text) else { continue };
        let lease = settings.worker.lease;
        let options = Options::of(&settings);
        (taken, slow) = (taken + 1, slow + u32::from(settings.scheduler.reap_every > lease / 2));
        let shard = Shard::new(&settings).await;
        // Reapers also run while the worker is alive. Each reaper is up to half a period late, as on a busy machine.
        let mut since = Duration::ZERO;
        let mut killed = None;
        let is_back = loop {
            // A reaper skips a round that follows too quickly, so the interval has a minimum.
            let period = options.reap_period(lease);
            let late = period.max(lease / 40).mul_f64(rng.random_range(1.0..1.5));
            shard.advance(late).await;
            since += late;
            match &killed {
                None if since > lease * 3 => killed = Some((since, shard.lease().await)),
                None => shard.beat().await,
                Some((at, _)) if since - *at > lease * 3 => break false,
                Some(_) => {}
            }
            if shard.reap(period, killed.as_ref().map(|(_, held)| held)).await {
                assert!(killed.as_ref().is_some_and(|(at, _)| since - *at >= lease), "only the dead are reaped");
                break true;
            }
        };
        assert!(is_back, "nothing came back within three leases under seed {seed}:\n{text}");
    }
    assert!(taken > 30 && slow > 2, "of {DRAWS} draws {taken} were taken, {slow} of them with slow reaping");
}
