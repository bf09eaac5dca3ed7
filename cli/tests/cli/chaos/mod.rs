//! Runs a fleet of real processes under random faults. Redis is one server, a primary with a replica and three
//! Sentinels, or a cluster of three primaries with replicas. `make chaos` sets the duration, the target and the seed.

mod clocks;
mod configured;
mod nodes;
mod parts;
mod replies;
mod target;
mod verdict;
mod witness;

use std::collections::BTreeMap;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::{Value, json};
use tickfleet_client::{Client, RecordedReply};
use tickfleet_protocol::parse_turn;
use tickfleet_store::StoreOptions;
use tokio::time::{Instant, sleep};

use nodes::Node;
use parts::{ProxyState, ToolServer};
use replies::{all_replies, tenant_of};
use target::{ChaosTarget, RedisKind};
use verdict::{ChaosVerdict, Evidence};
use witness::Witness;

const AGENTS: usize = 6;
/// The processes start in this order, so schedulers must come first.
const ROLES: [&str; 5] = ["scheduler", "scheduler", "worker", "worker", "worker"];
/// Longer than the lease of every process, 2 s.
const PAST_THE_LEASE: Duration = Duration::from_millis(3_500);
const PATIENCE: Duration = Duration::from_secs(120);

/// Replies are only read at the end of the run, which may be hours later, so inboxes must hold many replies.
const INBOX_UNREAD_MAX: u64 = 1_000_000;

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }
}

/// Submits until Redis confirms the turn. The fleet accepts an ID only once.
async fn submit(client: &Client, tenant: &str, agent: &str, turn: u64, calls: u64) -> String {
    let id = format!("{agent}-{turn}");
    let call = |call: u64| {
        let tool = if (turn + call).is_multiple_of(2) { "pay" } else { "look" };
        // Each agent has its own range, so that every call has a unique number.
        let first = agent.bytes().last().unwrap_or(0);
        let number = u64::from(first) * 10_000_000 + turn * 100 + call;
        let arguments = json!({"number": number, "agent": agent, "turn": id, "tool": tool});
        json!({"id": format!("c{call}"), "name": tool, "arguments": arguments})
    };
    let calls: Vec<Value> = (0..calls).map(call).collect();
    let turn = json!({"tenant": tenant, "agent": agent, "reply_to": "box", "turn_id": id, "calls": calls});
    let turn = parse_turn(turn.to_string().as_bytes()).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        match client.submit(turn.clone()).await {
            Ok(_) => return id,
            Err(error) => assert!(Instant::now() < until, "{id} is not accepted: {error}"),
        }
        // The assertion above bounds the retries.
        sleep(Duration::from_millis(50)).await;
    }
}

/// Except for `daily`, each round of turns exceeds the agent's cap per tick.
async fn produce(client: Client, tenant: String, agent: String, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut accepted = Vec::new();
    let mut turn = 0;
    while !stop.load(Ordering::SeqCst) {
        let (turns, calls) = if agent == "daily" { (1, 1) } else { (6, 3) };
        for _ in 0..turns {
            turn += 1;
            accepted.push(submit(&client, &tenant, &agent, turn, calls).await);
        }
        // This pause sets the pace of the load.
        sleep(Duration::from_millis(3_000)).await;
    }
    accepted
}

struct ChaosFleet {
    target: ChaosTarget,
    folder: tempfile::TempDir,
    nodes: Vec<Node>,
    started: u32,
    clocks_of_processes: tempfile::TempDir,
    ahead: BTreeMap<PathBuf, i64>,
    /// Times at which a shard's clock may have changed. The shard may then begin a tick or a day again.
    jumps: Vec<Instant>,
    dice: Dice,
    client: Client,
    probes: u64,
    accepted: Vec<String>,
    /// In ms, by kind of fault.
    recovered: BTreeMap<&'static str, Vec<u128>>,
}

impl ChaosFleet {
    async fn start_on(target: ChaosTarget, seed: u64, address: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        configured::write(folder.path(), address, &target);
        let options =
            StoreOptions { shards: target.shards(), inbox_unread_max: INBOX_UNREAD_MAX, ..StoreOptions::default() };
        let client = Client::connect(&target.url(), options).await.unwrap();
        Self {
            target,
            folder,
            nodes: Vec::new(),
            started: 0,
            clocks_of_processes: tempfile::tempdir().unwrap(),
            ahead: BTreeMap::new(),
            jumps: Vec::new(),
            dice: Dice(seed),
            client,
            probes: 0,
            accepted: Vec::new(),
            recovered: BTreeMap::new(),
        }
    }

    fn aim(&mut self) {
        self.target.aim = self.dice.below(self.target.homes.len());
    }

    async fn play(&mut self, fault: &'static str) {
        self.aim();
        match fault {
            "kill a worker" | "kill a scheduler" => self.kill(fault.trim_start_matches("kill a ")),
            "stop a worker past its lease" => self.stop_for("worker").await,
            "stop a scheduler past its lease" => self.stop_for("scheduler").await,
            "restart a process in order" => self.replace(),
            "step Redis' clock" => self.step_redis().await,
            "step a process' clock" => self.step_process(),
            "kill Redis" => self.target.kill(None).await,
            "kill a primary whose replica lags" => {
                let lag = Duration::from_millis(200 + self.dice.below(1_300) as u64);
                self.target.kill(Some(lag)).await;
            }
            "stop a primary until it is replaced" => self.target.stop_until_replaced().await,
            "move a slot" => self.target.move_slot().await,
            "stop Redis" => {
                let primary = self.target.primary().await;
                self.target.server(primary).pause();
                // This pause is shorter than the time after which Sentinels consider a primary dead.
                sleep(Duration::from_millis(800)).await;
                self.target.server(primary).resume();
            }
            "SCRIPT FLUSH" => drop(self.target.ask(&["SCRIPT", "FLUSH"]).await),
            "CLIENT KILL" => drop(self.target.ask(&["CLIENT", "KILL", "TYPE", "normal"]).await),
            "delete keys" => self.delete().await,
            "change the configuration" => self.change().await,
            "fail over" => self.target.fail_over().await,
            "all nodes apart" => self.target.part(fault).await,
            _ if fault.contains("clients alone") || fault.contains("cut from") => self.target.part(fault).await,
            _ => self.play_on_one(fault).await,
        }
    }

    async fn play_on_one(&mut self, fault: &str) {
        let wire = match fault {
            "cut the wire" => ProxyState::Cut,
            "slow the wire" => ProxyState::Slow,
            "half-open wire" => ProxyState::HalfOpen,
            _ => {
                let used = self.target.text(&["INFO", "memory"]).await;
                let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
                let max = used.unwrap_or(10_000_000_u64).to_string();
                self.target.ask(&["CONFIG", "SET", "maxmemory", &max]).await;
                // Memory stays full for this long.
                sleep(PAST_THE_LEASE).await;
                self.target.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
                return;
            }
        };
        let RedisKind::One(_, proxy) = &self.target.kind else { return };
        proxy.set(wire);
        // The connection stays faulty for this long.
        sleep(PAST_THE_LEASE).await;
        proxy.set(ProxyState::Open);
    }

    /// Deletes the timers, a consumer group or the list `parked`. An operator must repair the timers. The fleet
    /// recreates the group. Only metrics use the list.
    async fn delete(&mut self) {
        let [timers, ready, parked] = ["timers", "ready:normal", "parked"].map(|name| self.target.key(name));
        match self.dice.below(3) {
            0 => {
                self.target.ask(&["DEL", &timers]).await;
                let url = self.target.url();
                let dir = self.folder.path().to_str().unwrap().to_owned();
                let repair = ["doctor", "--repair", "--by", "anna", "--config", &dir, "--redis-url", &url];
                tokio::task::block_in_place(|| crate::support::binary::tickfleet(&repair));
            }
            1 => drop(self.target.ask(&["XGROUP", "DESTROY", &ready, "workers"]).await),
            _ => drop(self.target.ask(&["DEL", &parked]).await),
        }
    }

    async fn change(&mut self) {
        let path = self.folder.path().join("agents.yaml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}  more{}: {{}}\n", self.probes)).unwrap();
        let url = self.target.url();
        let dir = self.folder.path().to_str().unwrap().to_owned();
        let set = ["tenant", "set", "other", "--plan", "gold", "--config", &dir, "--redis-url", &url];
        tokio::task::block_in_place(|| crate::support::binary::tickfleet(&set));
    }

    async fn storm(&mut self, until: Instant) {
        let mut left = Vec::new();
        while Instant::now() < until {
            if left.is_empty() {
                left = self.target.faults();
            }
            let fault = left.swap_remove(self.dice.below(left.len()));
            self.may_jump(fault);
            self.play(fault).await;
            self.may_jump(fault);
            self.probe(fault).await;
            // The pause has no faults, and a random length.
            sleep(Duration::from_millis(300 + self.dice.below(1_200) as u64)).await;
        }
    }

    fn may_jump(&mut self, fault: &str) {
        if self.target.forgets() && !self.ahead.is_empty() || fault == "step Redis' clock" {
            self.jumps.push(Instant::now());
        }
    }

    /// The agent never reaches its cap, so the time from submit to reply shows the recovery.
    async fn probe(&mut self, fault: &'static str) {
        let began = Instant::now();
        self.probes += 1;
        while tenant_of(&self.target.homes, "probe", self.probes) != self.target.homes[self.target.aim].tenant {
            self.probes += 1;
        }
        let tenant = self.target.homes[self.target.aim].tenant.clone();
        let id = submit(&self.client, &tenant, "probe", self.probes, 1).await;
        let name = tickfleet_store::TurnName::parse(&format!("{tenant}:{id}")).unwrap();
        loop {
            if let Ok(RecordedReply::Ended(_) | RecordedReply::InInbox) = self.client.reply(&name).await {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "after {fault:?} nothing goes on");
            // A late failover may have lost the turn, so the turn is submitted again.
            if self.target.forgets() && began.elapsed() > PATIENCE / 8 {
                submit(&self.client, &tenant, "probe", self.probes, 1).await;
            }
            // The assertion above bounds the loop.
            sleep(Duration::from_millis(5)).await;
        }
        self.accepted.push(id);
        self.recovered.entry(fault).or_default().push(began.elapsed().as_millis());
    }
}

#[allow(clippy::disallowed_methods, reason = "whoever runs it by hand says how long and from which seed")]
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn play(target: ChaosTarget) -> ChaosVerdict {
    let seconds = number("TICKFLEET_CHAOS_SECONDS", 45);
    let seed = number("TICKFLEET_CHAOS_SEED", 1);
    let (ledger, address) = ToolServer::start().await;
    let mut world = ChaosFleet::start_on(target, seed, &address).await;
    let witness = Witness::of(world.target.folders());
    world.start_all();
    let stop = Arc::new(AtomicBool::new(false));
    let agents = (0..AGENTS).map(|agent| format!("a{agent}")).chain(["daily".to_owned()]);
    let start = |agent: String| {
        let tenant = tenant_of(&world.target.homes, &agent, 0).to_owned();
        tokio::spawn(produce(world.client.clone(), tenant, agent, stop.clone()))
    };
    let producers: Vec<_> = agents.map(start).collect();
    let storm = world.storm(Instant::now() + Duration::from_secs(seconds));
    let broken = AssertUnwindSafe(storm).catch_unwind().await.err();
    stop.store(true, Ordering::SeqCst);
    let mut evidence =
        Evidence { accepted: std::mem::take(&mut world.accepted).into_iter().collect(), ..Evidence::default() };
    for producer in producers {
        evidence.accepted.extend(producer.await.unwrap());
    }
    let sent_again = all_replies(&mut world, &mut evidence).await;
    evidence.runs = ledger.runs();
    (evidence.admitted, evidence.jumps) = (witness.admitted(), witness.since(&world.jumps));
    evidence.has_replicas = world.target.forgets();
    assert!(evidence.admitted.len() >= evidence.runs.len() / 2, "the witness saw few slices");
    let verdict = evidence.judge();
    report(seed, &world.recovered, &evidence, &verdict);
    eprintln!("sent again: {sent_again}");
    if let Some(broken) = broken {
        std::panic::resume_unwind(broken);
    }
    verdict
}

fn report(seed: u64, recovered: &BTreeMap<&str, Vec<u128>>, evidence: &Evidence, verdict: &ChaosVerdict) {
    let faults: usize = recovered.values().map(Vec::len).sum();
    eprintln!(
        "seed {seed}: {faults} faults, {} turns accepted, {} runs of tools",
        evidence.accepted.len(),
        evidence.runs.len()
    );
    eprintln!("| fault | times | recovered p50 ms | p99 ms |\n|---|---|---|---|");
    for (fault, times) in recovered {
        let mut times = times.clone();
        times.sort_unstable();
        let at = |percent: usize| times[((times.len() - 1) * percent).div_ceil(100)];
        eprintln!("| {fault} | {} | {} | {} |", times.len(), at(50), at(99));
    }
    eprintln!(
        "lost {}, answered twice {}, once calls doubled {}, agents beyond their tick {}, calls beyond the day {}",
        verdict.lost.len(),
        verdict.answered_twice.len(),
        verdict.doubled.len(),
        verdict.tick_exceeded.len(),
        verdict.day_exceeded
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_redis_loses_and_duplicates_nothing_under_faults() {
    assert_eq!(play(ChaosTarget::one().await).await, ChaosVerdict::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "sentinels take minutes for their failovers: make chaos TARGET=sentinel"]
async fn durable_calls_keep_all_guarantees_behind_sentinels() {
    assert_eq!(play(ChaosTarget::sentinels().await).await, ChaosVerdict::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a failover takes seconds, and each fault is to come: make chaos TARGET=cluster"]
async fn durable_calls_keep_all_guarantees_on_a_cluster() {
    assert_eq!(play(ChaosTarget::cluster().await).await, ChaosVerdict::default());
}
