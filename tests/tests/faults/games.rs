//! Games: schedulers and workers as they are, on a store in memory that fails like a real one. Time is virtual, and a seed
//! decides what happens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_client::{Client, SubmitError};
use tickfleet_core::StreamKey;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{Effect, Turn};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_protocol::parse_turn;
use tickfleet_store::seam::Store as _;
use tickfleet_store::seam::look::Range;
use tickfleet_store::seam::memory::Clock;
use tickfleet_store::seam::memory::MemoryOptions;
use tickfleet_store::seam::memory::faults::{Faults, FaultyStore};
use tickfleet_store::{Store, StoreOptions};
use tickfleet_tests::fleet::Plan;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const LEASE_MS: i64 = 2_000;
/// The longest that a store remembers for [`FaultyStore::lose`], ms.
const HISTORY_MS: i64 = 2_000;
const AGENTS: [&str; 3] = ["kelly", "fran", "ben"];

/// The runtime's clock, which tests pause.
#[derive(Debug)]
struct VirtualClock(Instant);

impl Clock for VirtualClock {
    fn now_ms(&self) -> i64 {
        1_800_000_000_000 + i64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

/// Random numbers from a seed: SplitMix64.
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

/// How often each call ran, by turn and position.
type Runs = Arc<Mutex<BTreeMap<String, usize>>>;

fn tool(name: &'static str, effect: Effect, runs: &Runs) -> TypedTool {
    let runs = Arc::clone(runs);
    TypedTool::new(name, "Is counted.", effect, move |context: CallContext, args: Value| {
        let runs = Arc::clone(&runs);
        async move {
            *runs.lock().unwrap().entry(context.call.to_string()).or_default() += 1;
            // The tool's own time, which is virtual.
            sleep(Duration::from_millis(args["ms"].as_u64().unwrap_or_default())).await;
            if args["fails"].as_u64().unwrap_or_default() >= u64::from(context.attempt) {
                return Err(ToolError::Transient("not yet".into()));
            }
            Ok(json!({"attempt": context.attempt}))
        }
    })
}

/// A scheduler or a worker with a connection of its own.
struct Process {
    connection: FaultyStore,
    shutdown: Shutdown,
    running: JoinHandle<()>,
}

impl Process {
    /// Ends at once. Tasks that it has started may still run, as on a machine that is cut off.
    fn kill(self) {
        self.connection.sever();
        self.running.abort();
    }
}

struct Game {
    plan: Plan,
    faulty: FaultyStore,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    client: Client,
    dice: Dice,
    runs: Runs,
    /// Schedulers, then workers.
    processes: Vec<Process>,
    started: usize,
    turns: Vec<Turn>,
}

const SCHEDULERS: usize = 2;
const WORKERS: usize = 3;

impl Game {
    async fn start(seed: u64) -> Self {
        let runs = Runs::default();
        let tools = [("pay", Effect::Once), ("look", Effect::Read), ("write", Effect::Idempotent)];
        let plan = Plan {
            slots: 4,
            agents: AGENTS.map(String::from).into(),
            caps: DefaultCaps {
                tick_ms: 500,
                calls_per_tick: 8,
                max_actions_per_day: 100_000,
                ..DefaultCaps::default()
            },
            tools: tools.map(|(name, effect)| tool(name, effect, &runs)).into(),
            store: StoreOptions { lease_ms: LEASE_MS, ending_lease_ms: LEASE_MS, ..StoreOptions::default() },
            ..Plan::default()
        };
        let clock = Arc::new(VirtualClock(Instant::now()));
        let options = MemoryOptions { clock, lease_ms: LEASE_MS, bytes_max: 0 };
        let faulty = FaultyStore::new(options, seed, HISTORY_MS);
        let store = Store::in_memory(faulty.inner().clone(), 0, Arc::new(plan.store.clone()));
        store.ensure_groups().await.unwrap();
        let mut game = Self {
            active: plan.active(),
            metrics: Arc::new(Metrics::new().unwrap()),
            client: Client::over(vec![store]),
            plan,
            faulty,
            dice: Dice(seed),
            runs,
            processes: Vec::new(),
            started: 0,
            turns: Vec::new(),
        };
        for at in 0..SCHEDULERS + WORKERS {
            let process = game.process(at);
            game.processes.push(process);
        }
        game
    }

    /// A new scheduler or worker for this place.
    fn process(&mut self, at: usize) -> Process {
        self.started += 1;
        let connection = self.faulty.connect();
        let store = Store::in_memory(connection.clone(), 0, Arc::new(self.plan.store.clone()));
        let (active, metrics, shutdown) = (self.active.clone(), self.metrics.clone(), Shutdown::default());
        let name = format!("p{}", self.started);
        let running = if at < SCHEDULERS {
            let scheduler = self.plan.scheduler(store, active, metrics, &name);
            let stop = shutdown.draining.clone();
            tokio::spawn(async move { scheduler.run(stop).await.unwrap() })
        } else {
            let worker = self.plan.worker(store, active, metrics, &name, shutdown.now.child_token());
            let until = shutdown.clone();
            tokio::spawn(async move { worker.run(until).await.unwrap() })
        };
        Process { connection, shutdown, running }
    }

    async fn submit(&mut self, count: u64) {
        for _ in 0..count {
            let calls: Vec<Value> = (0..=self.dice.below(3)).map(|_| self.call()).collect();
            let number = self.turns.len();
            let agent = AGENTS[number % AGENTS.len()];
            let turn = json!({"turn_id": format!("t{number}"), "tenant": "acme", "agent": agent, "reply_to": "box", "calls": calls});
            self.turns.push(parse_turn(turn.to_string().as_bytes()).unwrap());
            if !self.resubmit(number).await {
                self.turns.pop();
            }
        }
    }

    /// True if the turn was accepted, now or before.
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

    /// Kills or drains one process, and starts another in its place.
    async fn replace(&mut self) {
        let at = self.dice.below(self.processes.len() as u64) as usize;
        let process = self.process(at);
        let old = std::mem::replace(&mut self.processes[at], process);
        if self.dice.below(4) == 0 {
            old.shutdown.drain();
            drop(tokio::time::timeout(Duration::from_secs(30), old.running).await);
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
        self.faulty.set_faults(faults);
    }

    /// The replies of each turn.
    async fn replies(&self) -> BTreeMap<String, Vec<Value>> {
        let inbox = StreamKey::new("replies:acme:box");
        let entries = self.faulty.inner().entries(&inbox, &Range::oldest(100_000)).await.unwrap();
        let mut replies: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (_, fields) in entries {
            let (_, reply) = fields.iter().find(|(name, _)| &**name == "reply").unwrap();
            let reply: Value = serde_json::from_slice(reply).unwrap();
            replies.entry(reply["turn_id"].as_str().unwrap().to_owned()).or_default().push(reply);
        }
        replies
    }

    /// Without faults, every turn is answered. Submits turns again that a loss may have taken.
    async fn finish(&mut self, resubmits: bool) -> BTreeMap<String, Vec<Value>> {
        self.faulty.set_faults(Faults::default());
        self.faulty.set_memory_short(false);
        let deadline = Instant::now() + Duration::from_secs(1_200);
        loop {
            // Virtual time: the runtime advances it when nothing else runs.
            sleep(Duration::from_secs(5)).await;
            let replies = self.replies().await;
            let open: Vec<usize> =
                (0..self.turns.len()).filter(|number| !replies.contains_key(&format!("t{number}"))).collect();
            if open.is_empty() {
                return replies;
            }
            assert!(Instant::now() < deadline, "not answered: {open:?}");
            for number in open.into_iter().filter(|_| resubmits) {
                self.resubmit(number).await;
            }
        }
    }

    fn check(&self, replies: &BTreeMap<String, Vec<Value>>) {
        let runs = self.runs.lock().unwrap();
        let count = |call: &str| runs.get(call).copied().unwrap_or_default();
        for (number, turn) in self.turns.iter().enumerate() {
            let of_turn = &replies[&format!("t{number}")];
            assert_eq!(of_turn.len(), 1, "{of_turn:#?}");
            let results = of_turn[0]["results"].as_array().unwrap_or_else(|| panic!("{}", of_turn[0]));
            assert_eq!(results.len(), turn.calls.len());
            for result in results {
                let (call, outcome) = (result["call"].as_str().unwrap(), result["outcome"].as_str().unwrap());
                let once = result["tool"] == "pay";
                assert!(!once || count(call) <= 1, "{call} ran {} times: {result}", count(call));
                match outcome {
                    "ok" => assert!(count(call) >= 1, "{call} never ran: {result}"),
                    "outcome_unknown" => assert!(once, "only an effect is uncertain: {result}"),
                    other => panic!("{call} ended as {other}: {result}"),
                }
            }
        }
    }
}

/// Plays one game. Processes are killed, or the store loses its last writes: never both, because what only a lost store and a
/// lost process knew is lost.
async fn play(seed: u64, loses: bool) {
    let mut game = Game::start(seed).await;
    for _ in 0..120 {
        // The time between two events of the game, which is virtual.
        sleep(Duration::from_millis(50 + game.dice.below(400))).await;
        match game.dice.below(8) {
            0 if !loses => game.replace().await,
            0 => game.faulty.lose(i64::try_from(game.dice.below(1_000)).unwrap()),
            1 => game.change_faults(),
            2 => game.faulty.set_memory_short(game.dice.below(2) == 0),
            _ => {
                let count = 1 + game.dice.below(6);
                game.submit(count).await;
            }
        }
    }
    let replies = game.finish(loses).await;
    game.check(&replies);
}

#[allow(clippy::print_stdout, reason = "the number of a failed game is its seed")]
async fn play_many(loses: bool) {
    for seed in 1..=games() {
        println!("game {seed}");
        play(seed, loses).await;
    }
}

/// The number of games.
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
