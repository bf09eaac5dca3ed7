//! One interleaving: the real store and the referee's world side by side, and the producers' and time's own steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redis::aio::MultiplexedConnection;
use shared::model::{AgentId, Caps, ConsumerId, InboxName, Priority, TaskId, TenantId, TurnId};
use shared::store::{
    Cancelled, Delegated, Delegation, Queue, Scripts, Store, StoreError, StoreOptions, Submission, Submitted,
    TimeSource, TurnName,
};

use super::scheduler::Scheduler;
use super::spec::{
    CRASHES_MAX, DAY_MS, ENDING_LEASE_MS, INBOX_UNREAD_MAX, INBOXES_MAX, LEASE_MS, ODD_AGENT, PRIORITIES, Policy,
    RETAIN_MS, START_MS, Spec, TENANT_READY_MAX, TENANT_TURNS_MAX, TENANTS, TURNS_MAX,
};
use super::witness::Witness;
use super::worker::Worker;
use super::world::{Inbound, World};

/// What is wrong, in words.
pub type Violation = String;

/// The server and store that interleavings use one after the other.
pub struct Table {
    pub store: Store,
    /// A process that counts other shards.
    stranger: Store,
    pub redis: MultiplexedConnection,
    raw_ms: Arc<AtomicI64>,
}

impl Table {
    pub async fn new(url: &str, scripts: Scripts) -> Self {
        let options = StoreOptions {
            namespace: "i".into(),
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
        let other = Arc::new(StoreOptions { shards: 2, ..options.clone() });
        let raw_ms = Arc::new(AtomicI64::new(START_MS));
        let store = Store::open(url, 0, Arc::new(options)).unwrap();
        let store = store.with_time(TimeSource::Injected(raw_ms.clone())).with_scripts(scripts.clone());
        let redis = store.connection().get().await.unwrap();
        let stranger = Store::open(url, 0, other).unwrap().with_time(TimeSource::Injected(raw_ms.clone()));
        let stranger = stranger.with_scripts(scripts);
        Self { store, stranger, redis, raw_ms }
    }

    /// An empty shard.
    async fn wipe(&mut self) {
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL").ignore();
        let streams = ["turns".to_owned(), "tasks".to_owned()].into_iter();
        for stream in streams.chain(Priority::ALL.map(|p| Queue::Ready(p).to_string())) {
            pipe.cmd("XGROUP").arg("CREATE").arg(self.store.keys().key(stream)).arg("workers").arg("0").arg("MKSTREAM");
            pipe.ignore();
        }
        for tenant in TENANTS {
            pipe.cmd("HSET")
                .arg(self.store.keys().key("budgets"))
                .arg(format!("{tenant}:{ODD_AGENT}"))
                .arg("foreign")
                .ignore();
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
    pub schedulers: Vec<Scheduler>,
    pub workers: Vec<Worker>,
    pub ghosts: Vec<Ghost>,
    pub witness: Witness,
    pub tasks: Vec<(&'static str, String)>,
    pub trace: VecDeque<String>,
    pub nonce: u64,
    pub raw_now_ms: i64,
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
            schedulers: Vec::new(),
            workers: Vec::new(),
            ghosts: Vec::new(),
            witness: Witness::default(),
            tasks: Vec::new(),
            trace: VecDeque::new(),
            nonce: 0,
            raw_now_ms: START_MS,
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
            19..34 => {
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
            94..97 => {
                // To the very edge of a window or a day, where mistakes live.
                let edge = [1_000, 5_000, DAY_MS][self.rng.random_range(0..3)];
                edge - self.raw_now_ms.rem_euclid(edge) - i64::from(self.rng.random_range(0..2))
            }
            _ => -self.rng.random_range(1..6_000),
        };
        self.advance(ms);
        self.note(|| format!("clock {ms:+}"));
    }

    async fn submit(&mut self) -> Result<(), Violation> {
        let known: Vec<usize> = (0..self.world.specs.len()).filter(|s| self.world.specs[*s].budget.is_none()).collect();
        let again = !known.is_empty() && self.rng.random_bool(0.2);
        let spec = if again || known.len() >= 16 {
            let old = known[self.rng.random_range(0..known.len())];
            let mut spec = self.world.specs[old].clone();
            if spec.given.is_some() && self.rng.random_bool(0.4) {
                spec.digest.push('x');
                spec.once.push(true);
            }
            spec
        } else {
            let (number, now_ms) = (self.world.specs.len(), self.now_ms());
            Spec::random(&mut self.rng, number, now_ms, &self.tasks)
        };
        let number = self.world.specs.len();
        self.world.specs.push(spec.clone());
        // Producers in other languages write the entry themselves.
        if self.rng.random_bool(0.15) {
            return self.submit_raw(number).await;
        }
        let submission = Submission {
            tenant: TenantId::new(spec.tenant).unwrap(),
            turn: spec.given.as_ref().map(|id| TurnId::new(id).unwrap()),
            digest: spec.digest.clone(),
            reply_to: spec.inbox.map(|inbox| InboxName::new(inbox).unwrap()),
            payload: number.to_string(),
        };
        let expected = self.world.submit(self.raw_now_ms, number);
        self.note(|| format!("submit #{number} {:?} {expected}", spec.given));
        let found = self.table.store.submit(&[submission]).await.map_err(|e| e.to_string())?.remove(0);
        let word = match &found {
            Submitted::Accepted { .. } => "OK",
            Submitted::Duplicate => "DUPLICATE",
            Submitted::Conflict => "CONFLICT",
            Submitted::QueueFull => "QUEUE_FULL",
            Submitted::InboxFull => "INBOX_FULL",
            Submitted::Pressure => "PRESSURE",
        };
        same("submit", &expected, &word)?;
        if let Submitted::Accepted { entry } = found {
            let remembered = spec.given.is_some();
            self.world.push_inbound(Inbound {
                order: 0,
                id: Some(entry.clone()),
                origin: entry,
                spec: number,
                crashes: 0,
                remembered,
                holder: None,
            });
        }
        Ok(())
    }

    async fn submit_raw(&mut self, number: usize) -> Result<(), Violation> {
        let mut command = redis::cmd("XADD");
        command.arg(self.table.store.keys().key("turns")).arg("*").arg("turn").arg(number);
        let entry: String = command.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        self.note(|| format!("xadd #{number} {entry}"));
        self.world.push_inbound(Inbound {
            order: 0,
            id: Some(entry.clone()),
            origin: entry,
            spec: number,
            crashes: 0,
            remembered: false,
            holder: None,
        });
        Ok(())
    }

    async fn delegate(&mut self) -> Result<(), Violation> {
        let old: Vec<usize> = (0..self.world.specs.len()).filter(|s| self.world.specs[*s].budget.is_some()).collect();
        let spec = if !old.is_empty() && self.rng.random_bool(0.3) {
            let mut spec = self.world.specs[old[self.rng.random_range(0..old.len())]].clone();
            if self.rng.random_bool(0.3) {
                spec.digest.push('x');
            }
            spec
        } else {
            let (number, now_ms) = (self.world.specs.len(), self.now_ms());
            Spec::random_task(&mut self.rng, number, now_ms, &self.tasks)
        };
        let number = self.world.specs.len();
        let id = spec.given.clone().unwrap_or_else(|| format!("j{number}"));
        self.world.specs.push(spec.clone());
        let delegation = Delegation {
            entry: None,
            tenant: TenantId::new(spec.tenant).unwrap(),
            task: TaskId::new(&id).unwrap(),
            given: spec.given.is_some(),
            digest: spec.digest.clone(),
            queue: Queue::Ready(spec.priority),
            agent: AgentId::new(spec.agent).unwrap(),
            deadline_ms: spec.deadline_ms,
            budget: spec.budget.unwrap_or(0),
            parent: spec.task.as_ref().map(|task| TaskId::new(task).unwrap()),
            meta: format!("m{number}"),
            call: "c0".into(),
            external_lease_ms: 0,
        };
        let expected = self.world.delegate(self.raw_now_ms, number, &id)?;
        self.note(|| format!("delegate {id} under {:?}: {expected}", spec.task));
        let found = self.table.store.delegate(&[delegation]).await.map_err(|e| e.to_string())?.remove(0);
        let found = match found {
            Delegated::Ok => "OK".to_owned(),
            Delegated::Duplicate => "DUPLICATE".into(),
            Delegated::Conflict => "CONFLICT".into(),
            Delegated::Refused(code) => format!("REFUSED {code}"),
        };
        same("delegate", &expected, &found)?;
        if found == "OK" {
            self.tasks.push((spec.tenant, id));
        }
        let caps = self.policy(self.world.generation).caps;
        self.look_at_queues(caps).await
    }

    async fn cancel(&mut self) -> Result<(), Violation> {
        let names: Vec<String> = self.world.turns.keys().cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let name = names[self.rng.random_range(0..names.len())].clone();
        let now_ms = self.world.clock(self.raw_now_ms);
        let expected = self.world.apply(&name, shared::model::referee::Event::Cancel, now_ms)?;
        self.note(|| format!("cancel {name}: {expected:?}"));
        let found =
            self.table.store.cancel(&TurnName::parse(&name).unwrap(), "why").await.map_err(|e| e.to_string())?;
        let word = match found {
            Cancelled::Ok => "Ok",
            Cancelled::Flagged => "Flagged",
            Cancelled::Ended => "Done",
            Cancelled::Unknown => "Unknown",
        };
        same("cancel", &format!("{expected:?}"), &word.to_owned())
    }

    async fn announce(&mut self) -> Result<(), Violation> {
        let policy = Policy::random(&mut self.rng);
        self.policies.push(policy);
        let number = self.policies.len() as u64;
        self.world.clock(self.raw_now_ms);
        self.world.generation = number;
        self.note(|| format!("announce {number}: {policy:?}"));
        let found = self.table.store.announce(&format!("p{number}")).await.map_err(|e| e.to_string())?;
        same("announce", &number, &found)?;
        match self.table.stranger.announce("other").await {
            Err(StoreError::Shards { .. }) => Ok(()),
            other => Err(format!("a process with another number of shards announces its policy: {other:?}")),
        }
    }

    /// Redis restarts: what it says of itself is another, and its data is what it was.
    async fn new_epoch(&mut self) -> Result<(), Violation> {
        let meta = self.table.store.keys().key("meta");
        let known: Option<String> = redis::cmd("HGET")
            .arg(&meta)
            .arg("run_id")
            .query_async(&mut self.table.redis)
            .await
            .map_err(|e| e.to_string())?;
        if known.is_none() {
            return Ok(());
        }
        let mut command = redis::cmd("HSET");
        command.arg(&meta).arg("run_id").arg("0123456789abcdef");
        let () = command.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        self.note(|| "restart".into());
        // Whoever comes first notices; a beat of nobody in particular does.
        let consumer = ConsumerId::new("witness").unwrap();
        self.world.beat(self.raw_now_ms, "witness");
        self.world.epoch_ms = self.now_ms();
        self.table.store.beat(&consumer).await.map_err(|e| e.to_string()).map(drop)
    }

    /// TTLs are of Redis' own clock: what they would remove is removed by hand.
    async fn expire(&mut self) -> Result<(), Violation> {
        // What is about to be forgotten is still known to the witness.
        let caps = self.policy(self.world.generation).caps;
        self.look_at_queues(caps).await?;
        let now_ms = self.now_ms();
        let gone = self.world.expire(now_ms, RETAIN_MS);
        self.note(|| format!("expire {gone:?}"));
        let mut command = redis::cmd("DEL");
        command.arg("nothing");
        for name in &gone {
            self.witness.forget(name);
            self.world.fences.retain(|(n, _), _| n != name);
            self.world.executed.retain(|(n, _), _| n != name);
            command.arg(self.table.store.keys().key(format!("done:{name}")));
            command.arg(self.table.store.keys().key(format!("id:{name}")));
        }
        let () = command.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Entries that appeared on the queues since the last look: what was dispatched, when, and under which caps.
    pub async fn look_at_queues(&mut self, caps: Caps) -> Result<(), Violation> {
        let mut pipe = redis::pipe();
        for priority in PRIORITIES {
            let key = self.table.store.keys().key(Queue::Ready(priority));
            pipe.cmd("XRANGE").arg(key).arg(format!("({}", self.witness.seen(priority))).arg("+");
        }
        let found: Vec<Vec<(String, Vec<String>)>> =
            pipe.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        let now_ms = self.now_ms();
        for (priority, entries) in PRIORITIES.into_iter().zip(found) {
            for (id, fields) in entries {
                self.witness.entry(&self.world, caps, priority, id, &fields, now_ms)?;
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
