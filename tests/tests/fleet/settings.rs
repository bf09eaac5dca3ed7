//! Whatever settings the loader takes, work of a worker that was killed comes back. Time is injected, the loader, the
//! reapers' pace and Redis are real.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scheduler::Options;
use tickfleet_config::{Settings, Sources};
use tickfleet_model::{AgentId, Caps, ConsumerId, DayCapAction, Priority, TenantId, TurnId};
use tickfleet_store::{
    Admission, AdmitReply, Generations, PolicyRow, Question, Queue, SliceEntry, Store, StoreOptions, TimeSource,
};
use tickfleet_testkit::RedisServer;

const DRAWS: u64 = 40;
const START_MS: i64 = 1_767_571_200_000;
const DAY_MS: i64 = 86_400_000;

fn any_of<T: Copy>(rng: &mut StdRng, values: &[T]) -> T {
    values[rng.random_range(0..values.len())]
}

/// Settings as an operator may write them: the edges of every range come up often, and most relate as they must.
fn drawn(rng: &mut StdRng) -> String {
    const MS: [u64; 14] =
        [10, 100, 499, 500, 501, 1_000, 2_000, 3_000, 10_000, 15_000, 60_000, 90_000, 300_000, 600_000];
    let mut ms = |from: u64, upto: u64| {
        let edges: Vec<u64> = MS.into_iter().chain([from, upto]).filter(|ms| (from..=upto).contains(ms)).collect();
        if rng.random_bool(0.7) { any_of(rng, &edges) } else { rng.random_range(from..=upto) }
    };
    let lease = ms(1_000, 600_000);
    let (drain, reap) = (ms((lease / 4).max(1_000), 3_600_000), ms(10, lease));
    let (poll, collect, records) = (ms(1, 60_000), ms(100, 600_000), ms(1_000, 600_000));
    let (tick, dedupe) = (ms(poll.max(100), 3_600_000), ms(records, 900_000));
    let (slots, batch) = (any_of(rng, &[1, 2, 32, 10_000]), any_of(rng, &[1, 2, 256]));
    format!(
        "worker: {{lease: {lease}ms, drain: {drain}ms, slots: {slots}}}\n\
         scheduler: {{batch: {batch}, tick_poll: {poll}ms, collect_every: {collect}ms, reap_every: {reap}ms}}\n\
         caps: {{tick: {tick}ms}}\nretention: {{records: {records}ms, dedupe_for: {dedupe}ms}}\n"
    )
}

/// What the loader makes of them; none where it refuses them.
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
    now_ms: Arc<AtomicI64>,
}

impl Shard {
    async fn new(server: &RedisServer, settings: &Settings) -> Self {
        let now_ms = Arc::new(AtomicI64::new(START_MS));
        let lease_ms = i64::try_from(settings.worker.lease.as_millis()).unwrap();
        let options = StoreOptions { lease_ms, ending_lease_ms: lease_ms, ..StoreOptions::default() };
        let store = Store::open(&server.url(), 0, Arc::new(options)).unwrap();
        let store = store.with_time(TimeSource::Injected(Arc::clone(&now_ms)));
        let _: String = store.connection().query(Question::Look, &redis::cmd("FLUSHALL")).await.unwrap();
        store.ensure_groups().await.unwrap();
        Self { store, now_ms }
    }

    fn advance(&self, by: Duration) {
        self.now_ms.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Admits a turn, which the worker leases.
    async fn lease(&self, worker: &ConsumerId) {
        let scheduler = ConsumerId::new("s").unwrap();
        let mut add = redis::cmd("XADD");
        add.arg(self.store.keys().key("turns")).arg("*").arg("turn").arg("{}");
        let entry: String = self.store.connection().query(Question::Look, &add).await.unwrap();
        let block = Duration::from_millis(10);
        assert_eq!(self.store.reader(&scheduler, block).take("turns", 1).await.unwrap().len(), 1);
        let caps = Caps {
            tick_ms: 5_000,
            calls_per_tick: 10,
            calls_per_day: 10,
            tenant_calls_per_day: None,
            on_day_cap: DayCapAction::Reject,
        };
        let row = PolicyRow { caps, day_start_ms: START_MS, day_end_ms: START_MS + DAY_MS };
        let by = Generations { policy: 1, tenants: 0 };
        let decided = self.store.admit(by, &[row], &[], &[admission(entry)]).await.unwrap();
        assert!(matches!(decided, AdmitReply::Decided { .. }), "{decided:?}");
        self.store.beat(worker).await.unwrap();
        let found = self.store.reader(worker, block).take("ready:normal", 1).await.unwrap();
        SliceEntry::parse(Queue::Ready(Priority::Normal), &found[0]).unwrap();
    }
}

fn admission(entry: String) -> Admission {
    Admission {
        entry,
        tenant: TenantId::new("acme").unwrap(),
        agent: AgentId::new("kelly").unwrap(),
        turn: TurnId::new("t1").unwrap(),
        given: true,
        digest: "d".into(),
        policy: 0,
        priority: Priority::Normal,
        deadline_ms: START_MS + DAY_MS,
        stagger_ms: 0,
        reply_to: None,
        task: None,
        meta: format!(r#"{{"ag":"kelly","dl":{},"dg":"d","n":1}}"#, START_MS + DAY_MS),
        calls: vec![r#"{"i":"c0","t":"echo","a":"{}"}"#.into()],
        counters: Vec::new(),
    }
}

#[tokio::test]
async fn a_killed_workers_work_comes_back_under_whatever_settings_the_loader_takes() {
    let server = RedisServer::start().await;
    let (mut taken, mut slow) = (0, 0);
    for seed in 0..DRAWS {
        let mut rng = StdRng::seed_from_u64(seed);
        let text = drawn(&mut rng);
        let Some(settings) = loaded(&text) else { continue };
        let (lease, options) = (settings.worker.lease, Options::of(&settings));
        (taken, slow) = (taken + 1, slow + u32::from(settings.scheduler.reap_every > lease / 2));
        let (shard, worker) = (Shard::new(&server, &settings).await, ConsumerId::new("w").unwrap());
        // The reapers are at it while the worker lives, each time late by up to a half: the machine is busy.
        let mut since = Duration::ZERO;
        let mut killed = None;
        let requeued = loop {
            // Looks that follow each other closely are left out.
            let late = options.reap_period(lease).max(lease / 40).mul_f64(rng.random_range(1.0..1.5));
            shard.advance(late);
            since += late;
            match killed {
                None if since > lease * 3 => {
                    shard.lease(&worker).await;
                    killed = Some(since);
                }
                None => drop(shard.store.beat(&worker).await.unwrap()),
                Some(at) if since - at > lease * 3 => break 0,
                Some(_) => {}
            }
            let reaped = shard.store.reap(10).await.unwrap();
            assert!(reaped.requeued == 0 || killed.is_some_and(|at| since - at >= lease), "only the dead are reaped");
            if reaped.requeued > 0 {
                break reaped.requeued;
            }
        };
        assert_eq!(requeued, 1, "nothing came back within three leases under seed {seed}:\n{text}");
    }
    assert!(taken > 30 && slow > 2, "of {DRAWS} draws {taken} were taken, {slow} of them with slow reaping");
}
