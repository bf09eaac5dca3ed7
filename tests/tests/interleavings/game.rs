//! One interleaving: the real store and the referee's world side by side, and the producers' and time's own steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redis::aio::MultiplexedConnection;
use tickfleet_model::ConsumerId;
use tickfleet_store::{Queue, Scripts, Store, StoreOptions, TimeSource};

use crate::interleavings::actors::scheduler::Scheduler;
use crate::interleavings::actors::worker::Worker;
use crate::interleavings::worlds::snapshot::compare;
use crate::interleavings::worlds::spec::{
    CRASHES_MAX, CapsSet, DAY_MS, ENDING_LEASE_MS, INBOX_UNREAD_MAX, INBOXES_MAX, LEASE_MS, ODD_AGENT, ODD_TASK,
    Policy, QUEUES, Rows, START_MS, TENANT_READY_MAX, TENANT_TURNS_MAX, TENANTS, TURNS_MAX,
};
use crate::interleavings::worlds::witness::Witness;
use crate::interleavings::worlds::world::World;

/// What is wrong, in words.
pub type Violation = String;

/// The server and store that interleavings use one after the other.
pub struct Table {
    pub store: Store,
    /// A process that counts other shards.
    pub(super) stranger: Store,
    pub redis: MultiplexedConnection,
    raw_ms: Arc<AtomicI64>,
    /// Whether the server has no other shards.
    pub(super) is_alone: bool,
}

impl Table {
    pub async fn new(url: &str, scripts: Scripts) -> Self {
        Self::of_shard(url, scripts, 0, 1).await
    }

    /// The table of one shard of several on the same server.
    pub(super) async fn of_shard(url: &str, scripts: Scripts, shard: u32, shards: u32) -> Self {
        let options = StoreOptions {
            namespace: "i".into(),
            shards,
            lease_ms: LEASE_MS,
            ending_lease_ms: ENDING_LEASE_MS,
            turns_max: TURNS_MAX,
            tenant_turns_max: TENANT_TURNS_MAX.unsigned_abs(),
            tenant_ready_max: TENANT_READY_MAX.unsigned_abs(),
            inbox_unread_max: INBOX_UNREAD_MAX as u64,
            inboxes_max: INBOXES_MAX as u64,
            crashes_max: CRASHES_MAX,
            ..StoreOptions::default()
        };
        // How little is out while memory is full is `bounds`' to test: here everything drains.
        let scripts = scripts.sabotage("SLICES_AT_BRIM = 256, 16", "SLICES_AT_BRIM = 256, 256").unwrap();
        let other = Arc::new(StoreOptions { shards: shards + 1, ..options.clone() });
        let raw_ms = Arc::new(AtomicI64::new(START_MS));
        let store = Store::open(url, shard, Arc::new(options)).unwrap();
        let store = store.with_time(TimeSource::Injected(raw_ms.clone())).with_scripts(scripts.clone());
        let redis = store.connection().get().await.unwrap();
        let stranger = Store::open(url, shard, other).unwrap().with_time(TimeSource::Injected(raw_ms.clone()));
        let stranger = stranger.with_scripts(scripts);
        Self { store, stranger, redis, raw_ms, is_alone: shards == 1 }
    }

    /// An empty shard. Where there are several, whoever plays them has emptied the server.
    async fn wipe(&mut self) {
        let mut pipe = redis::pipe();
        if self.is_alone {
            pipe.cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).ignore();
            pipe.cmd("FLUSHALL").ignore();
        }
        let streams = ["turns".to_owned(), "tasks".to_owned()].into_iter();
        for stream in streams.chain(Queue::of_workers().map(|queue| queue.to_string())) {
            pipe.cmd("XGROUP").arg("CREATE").arg(self.store.keys().key(stream)).arg("workers").arg("0").arg("MKSTREAM");
            pipe.ignore();
        }
        for tenant in TENANTS {
            pipe.cmd("HSET")
                .arg(self.store.keys().key("budgets"))
                .arg(format!("{tenant}:{ODD_AGENT}"))
                .arg("foreign")
                .ignore();
            pipe.cmd("SET").arg(self.store.keys().key(format!("turn:{tenant}:{ODD_TASK}"))).arg("foreign").ignore();
        }
        let () = pipe.query_async(&mut self.redis).await.unwrap();
    }
}

/// Somebody who was taken for dead, and goes on with what it remembers.
pub enum Ghost {
    Scheduler(Scheduler),
    Worker(Worker),
}

/// One interleaving in progress.
pub struct Game<'t> {
    pub table: &'t mut Table,
    pub rng: StdRng,
    pub world: World,
    pub policies: Vec<Policy>,
    /// The caps that were set at run time, by generation.
    pub(super) caps_set: Vec<CapsSet>,
    pub schedulers: Vec<Scheduler>,
    pub workers: Vec<Worker>,
    pub ghosts: Vec<Ghost>,
    pub witness: Witness,
    pub tasks: Vec<(&'static str, String)>,
    pub trace: VecDeque<String>,
    pub nonce: u64,
    pub raw_now_ms: i64,
    /// How far Redis' clock runs ahead, ms, until somebody corrects it.
    ahead_ms: i64,
    /// Whether Redis' memory is full.
    pub(super) full: bool,
    incarnations: u64,
    /// Percent of steps in which a whole lease goes by, and with it whoever does not beat.
    deadly: u32,
}

impl<'t> Game<'t> {
    pub async fn new(table: &'t mut Table, seed: u64) -> Result<Self, Violation> {
        table.wipe().await;
        let mut game = Self {
            table,
            rng: StdRng::seed_from_u64(seed),
            world: World::default(),
            policies: Vec::new(),
            caps_set: vec![CapsSet::default()],
            schedulers: Vec::new(),
            workers: Vec::new(),
            ghosts: Vec::new(),
            witness: Witness::default(),
            tasks: Vec::new(),
            trace: VecDeque::new(),
            nonce: 0,
            raw_now_ms: START_MS,
            ahead_ms: 0,
            full: false,
            incarnations: 0,
            deadly: 1,
        };
        if game.rng.random_bool(0.3) {
            game.deadly = 9;
        }
        game.set_clock(START_MS + 3_000);
        game.announce().await?;
        for _ in 0..game.rng.random_range(2..=3) {
            let scheduler = Scheduler::new(&mut game);
            game.schedulers.push(scheduler);
        }
        for _ in 0..game.rng.random_range(2..=3) {
            let worker = Worker::new(&mut game);
            game.workers.push(worker);
        }
        Ok(game)
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if self.trace.len() >= 60 {
            self.trace.pop_front();
        }
        let now_ms = self.now_ms() - START_MS;
        self.trace.push_back(format!("{now_ms:>7} {}", text()));
    }

    fn set_clock(&mut self, raw_ms: i64) {
        self.raw_now_ms = raw_ms;
        self.table.raw_ms.store(raw_ms, Ordering::SeqCst);
    }

    pub fn advance(&mut self, ms: i64) {
        self.set_clock(self.raw_now_ms + ms);
    }

    /// Shard time.
    pub fn now_ms(&self) -> i64 {
        self.world.now_ms(self.raw_now_ms)
    }

    pub fn consumer(&mut self, kind: char) -> ConsumerId {
        self.incarnations += 1;
        ConsumerId::new(format!("{kind}{}", self.incarnations)).unwrap()
    }

    /// The policy that a scheduler of this generation knows.
    pub fn policy(&self, generation: u64) -> Policy {
        self.policies[generation as usize - 1]
    }

    /// The caps that a scheduler knows which read the tenants of this generation.
    pub fn caps_set(&self, generation: u64) -> CapsSet {
        self.caps_set[generation as usize]
    }

    /// The caps in force.
    pub fn rows_now(&self) -> Rows {
        let set = self.caps_set(self.world.tenants_generation);
        self.policy(self.world.generation).rows(self.now_ms(), &set)
    }

    /// One random step; after every eighth, the worlds are compared.
    pub async fn checked_step(&mut self, number: usize) -> Result<(), Violation> {
        self.step().await?;
        if number % 8 == 7 { compare(self).await } else { Ok(()) }
    }

    /// One random step of anybody.
    pub async fn step(&mut self) -> Result<(), Violation> {
        if self.rng.random_range(0..100) < self.deadly {
            return self.lease_goes_by().await;
        }
        match self.rng.random_range(0..100) {
            0..12 => self.submit().await,
            12..14 => self.delegate().await,
            14..16 => self.cancel().await,
            16..17 => self.announce().await,
            17..18 => self.new_epoch().await,
            18..19 => self.expire().await,
            19..21 => self.set_tenant().await,
            21..23 => self.hand_in_redis().await,
            // Memory is the server's: shards that share one would have to be told.
            23..24 if self.table.is_alone => self.memory_turns().await,
            24..34 => {
                self.time_passes();
                Ok(())
            }
            34..40 => self.haunt().await,
            40..68 => {
                let at = self.rng.random_range(0..self.schedulers.len());
                let mut scheduler = self.schedulers.remove(at);
                let done = scheduler.step(self).await;
                self.schedulers.insert(at, scheduler);
                done
            }
            _ => {
                let at = self.rng.random_range(0..self.workers.len());
                let mut worker = self.workers.remove(at);
                let done = worker.step(self).await;
                self.workers.insert(at, worker);
                done
            }
        }
    }

    /// A lease and the reapers' own pause go by. One scheduler reaps all the time, some of the others stay alive.
    async fn lease_goes_by(&mut self) -> Result<(), Violation> {
        let mut reaper = self.schedulers.remove(0);
        let mut survivor = if self.rng.random_bool(0.5) { self.workers.pop() } else { None };
        let mut done = Ok(());
        for _ in 0..9 {
            self.advance(LEASE_MS / 4);
            done = reaper.survive(self).await;
            if let (Ok(()), Some(worker)) = (&done, &mut survivor) {
                done = worker.beat(self).await;
            }
            if done.is_err() {
                break;
            }
        }
        self.schedulers.insert(0, reaper);
        self.workers.extend(survivor);
        done
    }

    /// A step of a ghost, if there is one.
    pub async fn haunt(&mut self) -> Result<(), Violation> {
        if self.ghosts.is_empty() {
            return Ok(());
        }
        let at = self.rng.random_range(0..self.ghosts.len());
        let mut ghost = self.ghosts.remove(at);
        self.note(|| "a ghost:".into());
        let done = match &mut ghost {
            Ghost::Scheduler(scheduler) => scheduler.haunt(self).await,
            Ghost::Worker(worker) => worker.haunt(self).await,
        };
        self.ghosts.insert(at, ghost);
        done
    }

    fn time_passes(&mut self) {
        let ms = match self.rng.random_range(0..100) {
            0..45 => self.rng.random_range(1..100),
            45..75 => self.rng.random_range(100..1_200),
            75..90 => self.rng.random_range(1_200..2_000),
            90..94 => self.rng.random_range(4_000..9_000),
            94 => self.clock_steps_by_days(),
            95..97 => {
                // To the very edge of a window or a day, where mistakes live.
                let edge = [1_000, 5_000, DAY_MS][self.rng.random_range(0..3)];
                edge - self.raw_now_ms.rem_euclid(edge) - i64::from(self.rng.random_range(0..2))
            }
            _ => -self.rng.random_range(1..6_000),
        };
        self.advance(ms);
        self.note(|| format!("clock {ms:+}"));
    }

    /// Redis' clock runs days or decades ahead, or is corrected after that.
    fn clock_steps_by_days(&mut self) -> i64 {
        let ms =
            if self.ahead_ms > 0 { -self.ahead_ms } else { 86_400_000 * [1, 3, 40_000][self.rng.random_range(0..3)] };
        self.ahead_ms += ms;
        ms
    }

    /// Entries that appeared on the queues since the last look: what was dispatched, when, and under which caps.
    pub async fn look_at_queues(&mut self, rows: &Rows) -> Result<(), Violation> {
        let mut pipe = redis::pipe();
        for queue in QUEUES {
            let key = self.table.store.keys().key(queue);
            pipe.cmd("XRANGE").arg(key).arg(format!("({}", self.witness.seen(queue))).arg("+");
        }
        let found: Vec<Vec<(String, Vec<String>)>> =
            pipe.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        let now_ms = self.now_ms();
        for (queue, entries) in QUEUES.iter().zip(found) {
            for (id, fields) in entries {
                self.witness.entry(&self.world, rows, queue, id, &fields, now_ms)?;
            }
        }
        Ok(())
    }
}

/// The two worlds must agree.
///
/// # Errors
/// What differs.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, found: &T) -> Result<(), Violation> {
    if expected == found { Ok(()) } else { Err(format!("{what}: the referee says {expected:?}, Redis says {found:?}")) }
}
