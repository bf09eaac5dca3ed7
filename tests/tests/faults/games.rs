//! Randomized games on in-memory stores. Time is virtual, and one seed determines all events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_client::operate::{Operator, set_tenant};
use tickfleet_client::verbs::switch_tool;
use tickfleet_client::{Client, SubmitError};
use tickfleet_config::TaskHandlerDef;
use tickfleet_core::view::Fields;
use tickfleet_core::{EntryId, StreamKey, Transaction, Version, Write};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::policy::{DefaultCaps, TenantPolicy};
use tickfleet_model::{AgentId, Effect, Redactor, Task, TenantId, Turn, TurnId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_protocol::{TaskMessage, parse_task_message, parse_turn};
use tickfleet_store::seam::inspect::Range;
use tickfleet_store::seam::memory::Clock;
use tickfleet_store::seam::memory::MemoryOptions;
use tickfleet_store::seam::memory::faults::{Faults, FaultyStore};
use tickfleet_store::seam::{Store as _, TakeRequest};
use tickfleet_store::{Store, StoreOptions, TurnName};
use tickfleet_tests::fleet::Plan;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const LEASE_MS: i64 = 2_000;
/// In ms. [`FaultyStore::lose`] can lose only writes that are not older than this.
const HISTORY_MS: i64 = 2_000;
const AGENTS: [&str; 3] = ["kelly", "fran", "ben"];
/// `sam` has a handler, and `ext` is an external runtime.
const TAKERS: [&str; 2] = ["sam", "ext"];
/// `late` is created at run time.
const TENANTS: [&str; 3] = ["acme", "blue", "late"];
const SHARDS: u32 = 2;

#[derive(Debug)]
struct VirtualClock(Instant);

impl Clock for VirtualClock {
    fn now_ms(&self) -> i64 {
        1_800_000_000_000 + i64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Call (turn and position) → number of runs.
type Runs = Arc<Mutex<BTreeMap<String, usize>>>;

fn tool(name: &'static str, effect: Effect, runs: &Runs) -> TypedTool {
    let runs = Arc::clone(runs);
    TypedTool::new(name, "Is counted.", effect, move |context: CallContext, args: Value| {
        let runs = Arc::clone(&runs);
        async move {
            *runs.lock().unwrap().entry(context.call.to_string()).or_default() += 1;
            // The duration of the call, in virtual time.
            sleep(Duration::from_millis(args["ms"].as_u64().unwrap_or_default())).await;
            if args["fails"].as_u64().unwrap_or_default() >= u64::from(context.attempt) {
                return Err(ToolError::Transient("not yet".into()));
            }
            Ok(json!({"attempt": context.attempt}))
        }
    })
}

fn handler() -> TypedTool {
    TypedTool::new("sam_works", "Works.", Effect::Idempotent, |context: CallContext, _: Value| async move {
        if context.attempt == 1 {
            return Err(ToolError::Transient("not yet".into()));
        }
        Ok(json!({"attempt": context.attempt}))
    })
}

async fn outside(connection: FaultyStore, tenant: &'static str, mut dice: Dice) {
    let queue = StreamKey::new(format!("external:{tenant}:ext"));
    let take = TakeRequest { consumer: "runtime".into(), queues: vec![queue], count: 4, wait_ms: 500 };
    loop {
        let Ok(taken) = connection.take(&take).await else {
            // The store rejected the command, so this pauses as a client does.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        for entry in taken {
            if dice.below(4) > 0 {
                // The duration of the work, in virtual time.
                sleep(Duration::from_millis(dice.below(400))).await;
                finish(&connection, &entry.fields, &entry.entry, &mut dice).await;
            }
        }
    }
}

async fn finish(connection: &FaultyStore, fields: &Fields, lease: &EntryId, dice: &mut Dice) {
    let task: Value = serde_json::from_slice(&fields.iter().find(|(name, _)| &**name == "task").unwrap().1).unwrap();
    let tenant = &task["tenant"];
    let id = &task["task_id"];
    let said = json!({"op": "finish", "tenant": tenant, "task_id": id, "lease": lease.as_str(), "output": "done"});
    let mut transaction = Transaction::new(Version::new(format!("r{:x}", dice.below(u64::MAX))));
    transaction.write(Write::Enqueue(StreamKey::new("tasks"), vec![("task".into(), said.to_string().into())]));
    // If this fails, the message is lost, and the task's lease ends.
    drop(connection.commit(&[transaction]).await);
}

struct Process {
    connections: Vec<FaultyStore>,
    shutdown: Shutdown,
    running: Vec<JoinHandle<()>>,
    workers: Vec<Arc<worker::Worker>>,
}

impl Process {
    /// Running tool calls may continue, as on a machine without network.
    fn kill(self) {
        self.connections.iter().for_each(FaultyStore::sever);
        self.running.iter().for_each(JoinHandle::abort);
    }
}

struct Game {
    plan: Plan,
    faulty: Vec<FaultyStore>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    client: Client,
    dice: Dice,
    runs: Runs,
    /// Schedulers first, then workers.
    processes: Vec<Process>,
    started: usize,
    turns: Vec<Turn>,
    tasks: Vec<Task>,
    canceled: BTreeSet<usize>,
    is_switched: bool,
    has_late: bool,
    runtimes: Vec<JoinHandle<()>>,
}

const SCHEDULERS: usize = 2;
const WORKERS: usize = 3;

impl Game {
    async fn start(seed: u64) -> Self {
        let runs = Runs::default();
        let tools = [("pay", Effect::Once), ("look", Effect::Read), ("write", Effect::Idempotent)];
        let plan = Plan {
            slots: 4,
            agents: AGENTS.into_iter().chain(TAKERS).map(String::from).collect(),
            handlers: [
                (AgentId::new("sam").unwrap(), TaskHandlerDef::Typed("sam_works".into())),
                (AgentId::new("ext").unwrap(), TaskHandlerDef::External { lease: Duration::from_secs(1) }),
            ]
            .into(),
            task_tools: vec![handler()],
            policy: |policy| {
                policy.tenants.insert(TenantId::new("blue").unwrap(), TenantPolicy::default());
            },
            caps: DefaultCaps {
                tick_ms: 500,
                calls_per_tick: 8,
                max_actions_per_day: 100_000,
                ..DefaultCaps::default()
            },
            tools: tools.map(|(name, effect)| tool(name, effect, &runs)).into(),
            store: StoreOptions { shards: SHARDS, lease_ms: LEASE_MS, ..StoreOptions::default() },
            ..Plan::default()
        };
        let clock = Arc::new(VirtualClock(Instant::now()));
        let options = MemoryOptions { clock, lease_ms: LEASE_MS, bytes_max: 0 };
        let faulty: Vec<FaultyStore> = (0..SHARDS)
            .map(|shard| FaultyStore::new(options.clone(), seed ^ u64::from(shard) << 32, HISTORY_MS))
            .collect();
        let shard = |number: u32| {
            let memory = faulty[number as usize].inner().clone();
            Store::in_memory(memory, number, Arc::new(plan.store.clone()))
        };
        let stores: Vec<Store> = (0..SHARDS).map(shard).collect();
        for store in &stores {
            store.ensure_groups().await.unwrap();
        }
        let runtime = |(at, tenant): (usize, &'static str)| {
            let client = Client::over(stores.clone());
            let home = client.store(&TenantId::new(tenant).unwrap()).shard();
            tokio::spawn(outside(faulty[home as usize].connect(), tenant, Dice(seed ^ 77 ^ at as u64)))
        };
        let runtimes = TENANTS.into_iter().enumerate().map(runtime).collect();
        let mut game = Self {
            active: plan.active(),
            metrics: Arc::new(Metrics::new().unwrap()),
            client: Client::over(stores),
            plan,
            faulty,
            dice: Dice(seed),
            runs,
            processes: Vec::new(),
            started: 0,
            turns: Vec::new(),
            tasks: Vec::new(),
            canceled: BTreeSet::new(),
            is_switched: false,
            has_late: false,
            runtimes,
        };
        for at in 0..SCHEDULERS + WORKERS {
            let process = game.process(at);
            game.processes.push(process);
        }
        game
    }

    fn process(&mut self, at: usize) -> Process {
        self.started += 1;
        let connections: Vec<FaultyStore> = self.faulty.iter().map(FaultyStore::connect).collect();
        let shutdown = Shutdown::default();
        let name = format!("p{}", self.started);
        let mut workers = Vec::new();
        let mut run = |(number, connection): (u32, &FaultyStore)| {
            let store = Store::in_memory(connection.clone(), number, Arc::new(self.plan.store.clone()));
            let active = self.active.clone();
            let metrics = self.metrics.clone();
            if at < SCHEDULERS {
                let scheduler = self.plan.scheduler(store, active, metrics, &name);
                let stop = shutdown.draining.clone();
                tokio::spawn(async move { scheduler.run(stop).await.unwrap() })
            } else {
                let worker = self.plan.worker(store, active, metrics, &name, shutdown.now.child_token());
                let until = shutdown.clone();
                workers.push(Arc::clone(&worker));
                tokio::spawn(async move { worker.run(until).await.unwrap() })
            }
        };
        let running = (0..).zip(&connections).map(&mut run).collect();
        Process { connections, shutdown, running, workers }
    }

    fn tenant(&self, number: usize) -> &'static str {
        TENANTS[number % if self.has_late { 3 } else { 2 }]
    }

    async fn cancel(&mut self) {
        let recent = self.turns.len().min(8);
        if recent > 0 {
            let number = self.turns.len() - 1 - self.dice.below(recent as u64) as usize;
            let turn = TurnId::new(format!("t{number}")).unwrap();
            let name = TurnName { tenant: self.turns[number].tenant.clone(), turn };
            self.client.cancel(&name, "no").await.unwrap();
            self.canceled.insert(number);
        }
    }

    async fn delegate(&mut self, number: usize) {
        if number == self.tasks.len() {
            let tenant = self.tenant(number);
            let target = TAKERS[number % TAKERS.len()];
            let task = json!({"task_id": format!("k{number}"), "tenant": tenant, "target_agent": target, "reply_to": "box",
                "task_description": "work"});
            let Ok(TaskMessage::Delegate(task)) = parse_task_message(task.to_string().as_bytes()) else {
                panic!("a task")
            };
            self.tasks.push(*task);
        }
        match self.client.delegate(self.tasks[number].clone()).await {
            Ok(_) => {}
            Err(SubmitError::Pressure) if number + 1 == self.tasks.len() => drop(self.tasks.pop()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn change_settings(&mut self, loses: bool) {
        let redactor = Redactor::default();
        let operator = Operator { by: "anna", reason: "a game", redactor: &redactor };
        match self.dice.below(3) {
            0 => {
                let on = self.dice.below(2) == 0;
                switch_tool(self.client.stores(), "write", on, operator).await.unwrap();
                self.is_switched = true;
            }
            // Creates no tenant if writes are lost: a store that lost the tenant would reject all its turns.
            1 if !loses => {
                let late = TenantId::new("late").unwrap();
                set_tenant(self.client.store(&late), &late, &TenantPolicy::default(), operator).await.unwrap();
                // Schedulers read a new tenant with their next heartbeat.
                sleep(Duration::from_millis(LEASE_MS.unsigned_abs())).await;
                self.has_late = true;
            }
            _ => {
                let mut active = (*self.active.load()).clone();
                active.policy.defaults.calls_per_tick = 4 + u32::try_from(self.dice.below(8)).unwrap();
                active.digest = format!("test-{}", active.policy.defaults.calls_per_tick);
                let active = self.active.replace(active);
                for worker in self.processes.iter().flat_map(|process| &process.workers) {
                    worker.configure_tools(Arc::clone(&active), worker.tools());
                }
            }
        }
    }

    async fn submit(&mut self, count: u64) {
        for _ in 0..count {
            let calls: Vec<Value> = (0..=self.dice.below(3)).map(|_| self.call()).collect();
            let number = self.turns.len();
            let agent = AGENTS[number % AGENTS.len()];
            let tenant = self.tenant(number);
            let turn = json!({"turn_id": format!("t{number}"), "tenant": tenant, "agent": agent, "reply_to": "box", "calls": calls});
            self.turns.push(parse_turn(turn.to_string().as_bytes()).unwrap());
            if !self.resubmit(number).await {
                self.turns.pop();
            }
        }
    }

    async fn resubmit(&self, number: usize) -> bool {
        match self.client.submit(self.turns[number].clone()).await {
            Ok(_) => true,
            Err(SubmitError::Pressure) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn call(&mut self) -> Value {
        let name = ["pay", "pay", "look", "write"][self.dice.below(4) as usize];
        let ms = [0, 0, 20, 600][self.dice.below(4) as usize];
        let fails = if name == "pay" { 0 } else { self.dice.below(3).saturating_sub(1) };
        json!({"name": name, "arguments": {"ms": ms, "fails": fails}})
    }

    async fn replace(&mut self) {
        let at = self.dice.below(self.processes.len() as u64) as usize;
        let process = self.process(at);
        let old = std::mem::replace(&mut self.processes[at], process);
        if self.dice.below(4) == 0 {
            old.shutdown.drain();
            drop(tokio::time::timeout(Duration::from_secs(30), futures::future::join_all(old.running)).await);
        } else {
            old.kill();
        }
    }

    fn change_faults(&mut self) {
        let faults = match self.dice.below(3) {
            0 => Faults::default(),
            1 => Faults { latency_ms: 0..=40, ..Faults::default() },
            _ => Faults { latency_ms: 0..=10, refused_per_mille: 20, unanswered_per_mille: 20 },
        };
        self.set_faults(&faults);
    }

    fn set_faults(&self, faults: &Faults) {
        self.faulty.iter().for_each(|faulty| faulty.set_faults(faults.clone()));
    }

    async fn replies(&self) -> BTreeMap<String, Vec<Value>> {
        let mut replies: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for tenant in TENANTS {
            let inbox = StreamKey::new(format!("replies:{tenant}:box"));
            let store = self.client.store(&TenantId::new(tenant).unwrap());
            for (_, fields) in store.seam().entries(&inbox, &Range::oldest(100_000)).await.unwrap() {
                let (_, reply) = fields.iter().find(|(name, _)| &**name == "reply").unwrap();
                let reply: Value = serde_json::from_slice(reply).unwrap();
                let id = reply["task_id"].as_str().or_else(|| reply["turn_id"].as_str()).unwrap();
                replies.entry(id.to_owned()).or_default().push(reply);
            }
        }
        replies
    }

    /// If `resubmits` is true, this submits lost turns and tasks again.
    async fn finish(&mut self, resubmits: bool) -> BTreeMap<String, Vec<Value>> {
        self.set_faults(&Faults::default());
        self.faulty.iter().for_each(|faulty| faulty.set_memory_short(false));
        let deadline = Instant::now() + Duration::from_secs(1_200);
        loop {
            // The runtime advances virtual time when nothing else runs.
            sleep(Duration::from_secs(5)).await;
            let replies = self.replies().await;
            let open: Vec<usize> =
                (0..self.turns.len()).filter(|number| !replies.contains_key(&format!("t{number}"))).collect();
            let tasks: Vec<usize> =
                (0..self.tasks.len()).filter(|number| !replies.contains_key(&format!("k{number}"))).collect();
            if open.is_empty() && tasks.is_empty() {
                self.runtimes.iter().for_each(JoinHandle::abort);
                return replies;
            }
            assert!(Instant::now() < deadline, "not answered: {open:?} {tasks:?}");
            for number in tasks.into_iter().filter(|_| resubmits) {
                self.delegate(number).await;
            }
            for number in open.into_iter().filter(|_| resubmits) {
                self.resubmit(number).await;
            }
        }
    }

    fn check(&self, replies: &BTreeMap<String, Vec<Value>>, seen: &mut BTreeMap<String, usize>) {
        let runs = self.runs.lock().unwrap();
        let count = |call: &str| runs.get(call).copied().unwrap_or_default();
        for (number, turn) in self.turns.iter().enumerate() {
            let of_turn = &replies[&format!("t{number}")];
            assert_eq!(of_turn.len(), 1, "{of_turn:#?}");
            let results = of_turn[0]["results"].as_array().unwrap_or_else(|| panic!("{}", of_turn[0]));
            assert_eq!(results.len(), turn.calls.len());
            for result in results {
                let call = result["call"].as_str().unwrap();
                let outcome = result["outcome"].as_str().unwrap();
                let once = result["tool"] == "pay";
                assert!(!once || count(call) <= 1, "{call} ran {} times: {result}", count(call));
                *seen.entry(outcome.to_owned()).or_default() += 1;
                match outcome {
                    "ok" => assert!(count(call) >= 1, "{call} never ran: {result}"),
                    "outcome_unknown" => {
                        let ends = self.canceled.contains(&number);
                        assert!(once || ends, "only an effect or the end of a turn is uncertain: {result}");
                    }
                    "cancelled" => assert!(self.canceled.contains(&number), "{result}"),
                    "denied" => assert!(self.is_switched && result["tool"] == "write", "{result}"),
                    other => panic!("{call} ended as {other}: {result}"),
                }
            }
        }
        for turn in &self.turns {
            *seen.entry(format!("turn of {}", turn.tenant)).or_default() += 1;
        }
        for number in 0..self.tasks.len() {
            let of_task = &replies[&format!("k{number}")];
            assert_eq!(of_task.len(), 1, "{of_task:#?}");
            let taker = TAKERS[number % TAKERS.len()];
            match of_task[0]["results"][0]["outcome"].as_str().unwrap() {
                "ok" => *seen.entry(format!("task of {taker}")).or_default() += 1,
                "outcome_unknown" if taker == "ext" => *seen.entry("task given up".into()).or_default() += 1,
                other => panic!("a task of {taker} ended as {other}: {}", of_task[0]),
            }
        }
    }
}

/// Either processes are killed or writes are lost. Both together would lose data that exists nowhere else.
async fn play(seed: u64, loses: bool, seen: &mut BTreeMap<String, usize>) {
    let mut game = Game::start(seed).await;
    for _ in 0..120 {
        // The virtual time between two events of the game.
        sleep(Duration::from_millis(50 + game.dice.below(400))).await;
        match game.dice.below(12) {
            0 if !loses => game.replace().await,
            0 => {
                let shard = game.dice.below(u64::from(SHARDS)) as usize;
                game.faulty[shard].lose(i64::try_from(game.dice.below(1_000)).unwrap());
            }
            1 => game.change_faults(),
            2 => {
                let shard = game.dice.below(u64::from(SHARDS)) as usize;
                let short = game.dice.below(2) == 0;
                game.faulty[shard].set_memory_short(short);
            }
            3 => game.cancel().await,
            4 | 5 => game.delegate(game.tasks.len()).await,
            6 => game.change_settings(loses).await,
            _ => {
                let count = 1 + game.dice.below(6);
                game.submit(count).await;
            }
        }
    }
    let replies = game.finish(loses).await;
    game.check(&replies, seen);
}

#[allow(clippy::print_stdout, reason = "the number of a failed game is its seed")]
async fn play_many(loses: bool) {
    let mut seen = BTreeMap::new();
    for seed in 1..=games() {
        println!("game {seed}");
        play(seed, loses, &mut seen).await;
    }
    println!("{seen:?}");
    let late = if loses { [].as_slice() } else { &["turn of late"] };
    let expected = ["ok", "cancelled", "denied", "task of sam", "task of ext", "turn of acme", "turn of blue"];
    for what in expected.iter().chain(late) {
        assert!(seen.contains_key(*what), "{what} never happened, so the games do not check it: {seen:?}");
    }
}

#[allow(clippy::disallowed_methods, reason = "a switch for whoever runs the tests")]
fn games() -> u64 {
    std::env::var("TICKFLEET_GAMES").ok().map_or(5, |games| games.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn killed_processes_lose_no_turn_and_repeat_no_effect() {
    play_many(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_loses_its_last_second_repeats_no_effect() {
    play_many(true).await;
}
