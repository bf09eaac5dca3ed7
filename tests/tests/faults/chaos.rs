//! Processes are killed at random. An external ledger must show that no effect happened twice.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tickfleet_model::{content_digest, idempotency_key};
use tickfleet_protocol::parse_turn;
use tickfleet_store::Store;
use tickfleet_testkit::RedisServer;
use tickfleet_tests::bfcl::{self, Bfcl, TOOLS_FILE, Turn};
use tickfleet_tests::bfcl_course::{Course, outcomes};
use tickfleet_tests::bfcl_node::{Node, NodeAddresses, Role, plan};
use tickfleet_tests::bfcl_tools::ToolBehavior;
use tickfleet_tests::inbox::{Inbox, submit_all};
use tickfleet_tests::ledger::{Entry, Ledger};
use tokio::time::Instant;

/// The seed of an earlier run repeats its random choices, but not its timing.
const SEED_VARIABLE: &str = "TICKFLEET_CHAOS_SEED";
const NODES: usize = 3;
/// Per role. For a longer run, `TICKFLEET_CHAOS_KILLS=<number>` sets another number.
const KILLS: usize = 22;
const KILLS_VARIABLE: &str = "TICKFLEET_CHAOS_KILLS";
const STEP: usize = 2;
const BETWEEN_MS: std::ops::Range<u64> = 200..700;
/// From less than one lease to more than one.
const STANDSTILL_MS: std::ops::Range<u64> = 700..2_200;
const STANDSTILL_EVERY: usize = 4;
/// The run fails after this time without a reply. Several leases long, because a slice may be hit several times.
const SILENCE: Duration = Duration::from_secs(60);

struct Chaos {
    server: RedisServer,
    store: Store,
    inbox: Inbox,
    ledger: Ledger,
    nodes: Vec<Node>,
    course: Course,
    _folder: tempfile::TempDir,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_kills_lose_no_call_and_repeat_no_effect() {
    let Some(data) = bfcl::load_unless_skipped().unwrap() else { return };
    let seed = number(SEED_VARIABLE).unwrap_or_else(|| StdRng::from_os_rng().random());
    let kills = number(KILLS_VARIABLE).map_or(KILLS, |kills| usize::try_from(kills).unwrap());
    eprintln!("{SEED_VARIABLE}={seed} {KILLS_VARIABLE}={kills}");
    let mut rng = StdRng::seed_from_u64(seed);
    let started = Instant::now();
    let mut chaos = Chaos::start(&data).await;
    chaos.kill_by_and_by(kills, &mut rng).await;
    let killed = started.elapsed();
    chaos.wait_for_all().await;
    let turns = chaos.course.turns();
    let all = started.elapsed();
    eprintln!("{turns} turns in {all:.1?}; {kills} schedulers and {kills} workers killed within {killed:.1?}");
    assert_eq!(chaos.inbox.total().await, turns, "replies in all");
    chaos.judge(&data);
    chaos.nothing_is_left().await;
}

#[allow(clippy::disallowed_methods, reason = "knobs of the test, documented beside it")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

impl Chaos {
    async fn start(data: &Bfcl) -> Self {
        let server = RedisServer::start().await;
        let (ledger, address) = Ledger::start().await;
        let course = Course::new(data, STEP);
        let folder = tempfile::tempdir().unwrap();
        let tools: Vec<String> =
            course.tools(data).into_iter().map(|tool| serde_json::to_string(tool).unwrap() + "\n").collect();
        std::fs::write(folder.path().join(TOOLS_FILE), tools.concat()).unwrap();
        let store = plan(&[], &address).store(&server.url());
        let inbox = Inbox::open(&server, store.keys(), "box").await;
        let surroundings =
            NodeAddresses { redis: server.url(), ledger: address, data: folder.path().to_str().unwrap().to_owned() };
        let start = |role| {
            let surroundings = &surroundings;
            (0..NODES).map(move |n| Node::start(env!("CARGO_BIN_EXE_fleet_node"), role, n, surroundings))
        };
        let nodes = start(Role::Scheduler).chain(start(Role::Worker)).collect();
        Self { server, store, inbox, ledger, nodes, course, _folder: folder }
    }

    /// Each round starts some conversations, so that kills never hit an idle fleet.
    async fn kill_by_and_by(&mut self, kills: usize, rng: &mut StdRng) {
        let share = self.course.conversations().div_ceil(kills);
        for round in 0..kills {
            let begun = self.course.begin(share);
            submit_all(&self.server, self.store.keys(), &begun).await;
            for role in [Role::Worker, Role::Scheduler] {
                let pause = Duration::from_millis(rng.random_range(BETWEEN_MS));
                self.pump_for(pause).await;
                let victim = rng.random_range(0..NODES);
                let node = self.nodes.iter_mut().filter(|node| node.role() == role).nth(victim).unwrap();
                node.kill_and_restart();
            }
            if round.is_multiple_of(STANDSTILL_EVERY) {
                let victim = rng.random_range(0..self.nodes.len());
                self.nodes[victim].pause();
                self.pump_for(Duration::from_millis(rng.random_range(STANDSTILL_MS))).await;
                self.nodes[victim].resume();
            }
        }
    }

    /// Sends the next turn of a conversation after each reply.
    async fn pump_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.pump(left).await;
        }
    }

    async fn pump(&mut self, wait: Duration) -> usize {
        let replies = self.inbox.next(wait).await;
        let count = replies.len();
        let next: Vec<Value> = replies.into_iter().filter_map(|reply| self.course.take(reply)).collect();
        submit_all(&self.server, self.store.keys(), &next).await;
        count
    }

    async fn wait_for_all(&mut self) {
        while self.course.answered() < self.course.turns() {
            if self.pump(SILENCE).await == 0 {
                let missing = self.course.missing();
                let records = self.records(&missing).await;
                panic!("{SILENCE:?} without a reply; {} are missing:\n{}", missing.len(), records.join("\n"));
            }
        }
    }

    async fn records(&self, ids: &[&str]) -> Vec<String> {
        let mut connection = self.server.connection().await;
        let mut records = Vec::new();
        for id in ids.iter().take(5) {
            let key = self.store.keys().key(format_args!("turn:acme:{id}"));
            let mut record: BTreeMap<String, String> =
                redis::cmd("HGETALL").arg(key).query_async(&mut connection).await.unwrap();
            record.retain(|field, _| !field.starts_with(['c', 'm', 'r', 'w', 'u']));
            records.push(format!("{id}: {record:?}"));
        }
        records
    }

    fn judge(&self, data: &Bfcl) {
        let results = self.course.results();
        let mut by_manner = BTreeMap::<String, Vec<&Value>>::new();
        for (id, turn, results) in &results {
            let keys = self.idempotency_keys(id);
            for (n, result) in results.iter().enumerate() {
                let manner = ToolBehavior::of(&turn.calls[n].0);
                check(data, turn, n, result, self.ledger.entry(&keys[n]));
                let manner = if let ToolBehavior::Slow(_) = manner { "Slow".to_owned() } else { format!("{manner:?}") };
                by_manner.entry(manner).or_default().push(result);
            }
        }
        for (manner, results) in by_manner {
            let retried = results.iter().filter(|r| r["attempts"].as_u64() > Some(1)).count();
            eprintln!(
                "{manner}: {} calls, {:?}, {retried} after a retry",
                results.len(),
                outcomes(results.iter().copied())
            );
        }
        let (keys, done) = self.ledger.totals();
        eprintln!("ledger: {done} effects of {keys} calls");
        assert_eq!(keys, usize::try_from(done).unwrap(), "effects that happened twice");
    }

    fn idempotency_keys(&self, id: &str) -> Vec<String> {
        let turn = parse_turn(self.course.sent(id).to_string().as_bytes()).unwrap();
        let digest = content_digest(&turn);
        let name = turn.id.clone().unwrap();
        (0..turn.calls.len()).map(|n| idempotency_key(&turn.tenant, &name, &digest, n)).collect()
    }

    async fn nothing_is_left(&self) {
        let mut connection = self.server.connection().await;
        let live: Vec<String> =
            redis::cmd("KEYS").arg(self.store.keys().key("turn:*")).query_async(&mut connection).await.unwrap();
        assert_eq!(live, Vec::<String>::new(), "records of turns that have not ended");
        for set in ["timers", "dead"] {
            let command = if set == "dead" { "XLEN" } else { "ZCARD" };
            let left: usize =
                redis::cmd(command).arg(self.store.keys().key(set)).query_async(&mut connection).await.unwrap();
            assert_eq!(left, 0, "entries of {set}");
        }
    }
}

fn check(data: &Bfcl, turn: &Turn, n: usize, result: &Value, entry: Entry) {
    let (tool, arguments) = &turn.calls[n];
    let manner = ToolBehavior::of(tool);
    let reported = || format!("{} call {n}, {tool}, {manner:?}, {entry:?}: {result}", turn.entry);
    let outcome = result["outcome"].as_str().unwrap();
    match (turn.valid[n], manner, outcome) {
        (false, _, "invalid_arguments") => assert_eq!(entry.done, 0, "{}", reported()),
        (true, ToolBehavior::Once, "outcome_unknown") => assert!(entry.done <= 1, "{}", reported()),
        (true, _, "ok") => {
            let mut expected = arguments.clone();
            if manner == ToolBehavior::Once {
                // The request has only arguments that the schema declares.
                let declared = &data.tool(tool).unwrap().schema["properties"];
                expected.as_object_mut().unwrap().retain(|name, _| !declared[name].is_null());
            }
            assert_eq!(result["output"], expected, "{}", reported());
            assert_eq!(entry.done, u32::from(manner == ToolBehavior::Once), "{}", reported());
        }
        _ => panic!("an outcome that cannot be: {}", reported()),
    }
}
