//! The cost of a turn in Redis, in instructions, which do not depend on the machine's load.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::json;
use tickfleet_config::{McpFile, ToolsFile, known_tools};
use tickfleet_core::audit::seal::{ExtendSeals, Seal, SealKey, SealResult};
use tickfleet_core::call::CallName;
use tickfleet_core::call::begin::{Begin, BeginResult};
use tickfleet_core::call::facts::{
    AppliedFactChange, CheckFacts, Condition, EndCalls, EndedCall, PossibleFactChange, SessionName,
};
use tickfleet_core::leases::Candidate;
use tickfleet_core::recovery::inbound::TakenInbound;
use tickfleet_core::turn::admit::{Admit, AdmitResult};
use tickfleet_core::turn::advance::AdvanceResult;
use tickfleet_core::turn::end::{RenderedCall, ReplyFrame};
use tickfleet_core::turn::limit::Generations;
use tickfleet_core::turn::{Settle, SettleResult, Slice};
use tickfleet_core::{Section, StreamKey, View, keys};
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_engine::report::{Renderer, ReportOptions, frame};
use tickfleet_engine::rules::{ActiveRules, SlotBounds};
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::{DefaultCaps, FactRow, FactTransition, Permissions, TenantPolicy, ToolGrant};
use tickfleet_model::{AgentId, AgentPolicy, ConsumerId, Limit, Policy, Priority, TenantId, TurnId};
use tickfleet_ops::redis_server::{PrivateRedis, ServerOptions};
use tickfleet_proof::seal::{ChainName, Head, Leaf, Losses, Signer, seal};
use tickfleet_protocol::parse_turn;
use tickfleet_store::seam::{TakeRequest, TakenEntry};
use tickfleet_store::{Store, StoreOptions, TurnName};
use tickfleet_testkit::connect;

const DAY_MS: i64 = 86_400_000;
/// So many that no agent reaches its cap.
const AGENTS: usize = 3_000;
/// So high that no measurement reaches a limit.
const PLACES: u64 = 100_000;
const SEALED_AT_ONCE: usize = 500;
const FACT_KEPT_MS: i64 = DAY_MS;

struct MeasuredRedis {
    server: PrivateRedis,
    dir: PathBuf,
    store: Store,
    connection: MultiplexedConnection,
    number: usize,
    dumps: usize,
    active: Arc<ActivePolicy>,
    has_facts: bool,
}

struct Enough;

impl SlotBounds for Enough {
    fn counts(&self, _limit: &Limit) -> bool {
        true
    }

    fn max_of(&self, limit: &Limit, _tenant: &TenantId) -> Option<u64> {
        limit.bound.is_of_slots().then_some(PLACES)
    }
}

fn policy(limits: Vec<Limit>) -> Arc<ActivePolicy> {
    let every = ToolGrant { everyone: true, ..ToolGrant::default() };
    let agents = (0..AGENTS).map(|number| (AgentId::new(format!("a{number}")).unwrap(), AgentPolicy::default()));
    let mut policy = Policy {
        agents: Arc::new(agents.collect()),
        tenants: [(tenant(), TenantPolicy::default())].into(),
        permissions: Permissions { matrix: [("echo".to_owned(), every)].into(), ..Permissions::default() },
        defaults: DefaultCaps {
            tick_ms: 5_000,
            calls_per_tick: 10,
            max_actions_per_day: 1_000_000,
            ..DefaultCaps::default()
        },
        limits: Arc::new(limits),
        ..Policy::default()
    };
    policy.known_tools = Arc::new(known_tools(&ToolsFile::default(), &McpFile::default(), &policy.permissions));
    Arc::new(ActivePolicy { policy, ..ActivePolicy::default() })
}

struct Sealing {
    signer: Signer,
    head: Head,
    after: String,
}

impl Sealing {
    fn new() -> Self {
        let signer = Signer::new("seal-1", &"07".repeat(32)).unwrap();
        Self { signer, head: Head::default(), after: String::new() }
    }

    async fn seal_all(&mut self, store: &Store) -> usize {
        let mut count = 0;
        let chain = ChainName { fleet: "bench".into(), shard: 0, tenant: "bench".into() };
        loop {
            self.extend(store, &self.after, Vec::new()).await;
            let after = if self.after.is_empty() { "0-0" } else { &self.after };
            let page = store.log_page(after, SEALED_AT_ONCE).await.unwrap();
            let leaf =
                |entry: &tickfleet_store::LogEntry| Leaf::of(entry.id.parse().unwrap(), &entry.admitted, &entry.text);
            let leaves: Vec<Leaf> = page.entries.iter().map(leaf).collect();
            let Some(last) = page.entries.last() else { return count };
            let now_ms = store.state().now_ms;
            let sealed = seal(&chain, &self.head, &leaves, &Losses::default(), now_ms, &self.signer);
            let head = sealed.head.to_string();
            let body = sealed.body;
            let signature = sealed.signature;
            self.extend(store, &last.id, vec![Seal { tenant: "bench".into(), head, body, signature }]).await;
            (self.head, self.after) = (sealed.head, last.id.clone());
            count += leaves.len();
            if leaves.len() < SEALED_AT_ONCE {
                return count;
            }
        }
    }

    /// If `seals` is empty, this only acquires the sealer's lease.
    async fn extend(&self, store: &Store, upto: &str, seals: Vec<Seal>) {
        let extend = ExtendSeals {
            candidate: Candidate { process: ConsumerId::new("s1").unwrap(), lease_ms: 10_000 },
            key: SealKey { id: "seal-1".into(), public: self.signer.public_key() },
            before: self.after.clone(),
            after: upto.to_owned(),
            seals,
            seals_max: store.options().audit_entries_max,
        };
        assert_eq!(store.decide(extend).await.unwrap().result, SealResult::Done);
    }
}

fn of_slots(name: &str, key: LimitKey, bound: LimitBound) -> Limit {
    Limit {
        name: name.into(),
        matches: LimitMatch::default(),
        per: [key].into(),
        bound,
        every: LimitWindow::Concurrency,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: PLACES,
    }
}

fn caps() -> Vec<Limit> {
    let of = |name: &str, key: LimitKey, every: LimitWindow| Limit {
        every,
        ..of_slots(name, key, LimitBound::Calls(PLACES))
    };
    vec![
        of("agent_tick", LimitKey::Agent, LimitWindow::Tick),
        of("agent_day", LimitKey::Agent, LimitWindow::Day),
        of("tenant_day", LimitKey::Tenant, LimitWindow::Day),
    ]
}

/// Three limits that count every call. All calls share two of the three counters.
fn three() -> Vec<Limit> {
    let of = |name: &str, key: LimitKey, every: LimitWindow| Limit {
        every,
        ..of_slots(name, key, LimitBound::Calls(PLACES))
    };
    vec![
        of("of_agents", LimitKey::Agent, LimitWindow::Day),
        of("of_tenants", LimitKey::Tenant, LimitWindow::Period(3_600_000)),
        of("of_tools", LimitKey::Tool, LimitWindow::Period(60_000)),
    ]
}

fn bulkhead() -> Limit {
    of_slots("tool_slots", LimitKey::Tool, LimitBound::Part(25))
}

fn fairness() -> Limit {
    of_slots("tenant_slots", LimitKey::Tenant, LimitBound::Share(1))
}

fn under_callgrind(dir: &Path) -> PathBuf {
    let program = dir.join("redis-under-callgrind");
    let out = dir.join("out.%p");
    let text = format!(
        "#!/bin/sh\nexec valgrind --tool=callgrind --callgrind-out-file={} redis-server \"$@\"\n",
        out.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

impl MeasuredRedis {
    async fn start(dir: &Path, limits: Vec<Limit>, has_facts: bool) -> Self {
        let options = ServerOptions {
            binary: Some(under_callgrind(dir)),
            extra_args: ["--hz", "1"].map(String::from).into(),
            ready_within: Duration::from_secs(60),
            ..ServerOptions::new(dir)
        };
        let server = PrivateRedis::start(options).await.unwrap();
        let options = StoreOptions {
            tenant_ready_max: 1_000_000,
            tenant_turns_max: 1_000_000,
            inbox_unread_max: 1_000_000,
            ..StoreOptions::default()
        };
        let store = Store::open(&server.url(), 0, Arc::new(options)).unwrap();
        store.ensure_groups().await.unwrap();
        store.refresh_state().await.unwrap();
        let connection = connect(&server.url()).await.unwrap();
        let active = policy(limits);
        Self { server, dir: dir.to_owned(), store, connection, number: 0, dumps: 0, active, has_facts }
    }

    async fn play(&mut self, batch: usize, rounds: usize) {
        for _ in 0..rounds {
            let mut submit = redis::pipe();
            for _ in 0..batch {
                submit.cmd("XADD").arg(self.store.keys().key("turns")).arg("*").arg("turn").arg(MESSAGE).ignore();
            }
            submit.query_async::<()>(&mut self.connection).await.unwrap();
            let entries = self.take("s1", keys::turns(), batch).await;
            self.admit(entries).await;
            let taken = self.take("w1", keys::ready(Priority::Normal), batch).await;
            let slice = |taken: TakenEntry| Slice::read(taken.queue, taken.entry, &taken.fields).unwrap();
            self.run_slices(taken.into_iter().map(slice).collect()).await;
        }
    }

    async fn take(&self, consumer: &str, queue: StreamKey, count: usize) -> Vec<TakenEntry> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let take = TakeRequest { consumer: consumer.into(), queues: vec![queue.clone()], count: 256, wait_ms: 100 };
            taken.extend(self.store.seam().take(&take).await.unwrap());
        }
        taken
    }

    async fn admit(&mut self, entries: Vec<TakenEntry>) {
        let deadline_ms = self.store.state().now_ms + DAY_MS;
        let epoch = self.store.state().epoch;
        let options = ReportOptions::default();
        let bounds = self.store.bounds();
        let render = Renderer { options: &options, policy: &self.active.policy };
        let active = Arc::clone(&self.active);
        let rules = ActiveRules { active, generations: Generations::default(), shard: (0, 1), slots: &Enough };
        let calls = parse_turn(MESSAGE.as_bytes()).unwrap().calls;
        let first = self.number;
        self.number += entries.len();
        let admit = |(number, taken): (usize, TakenEntry)| {
            let agent = format!("a{}", number % AGENTS);
            let head = json!({"ag": agent, "rt": "bench", "dl": deadline_ms, "ts": deadline_ms, "dg": DIGEST, "n": 1});
            Admit {
                name: TurnName { tenant: tenant(), turn: TurnId::new(format!("t{}", taken.entry)).unwrap() },
                origin: taken.entry.clone(),
                entry: TakenInbound { id: taken.entry, epoch },
                given: false,
                head: serde_json::from_value(head).unwrap(),
                priority: Priority::Normal,
                calls: &calls,
                policy: &rules,
                render: &render,
                bounds: &bounds,
            }
        };
        let turns: Vec<Admit<'_>> = (first..).zip(entries).map(admit).collect();
        for admitted in self.store.decide_all(&turns).await.unwrap() {
            let admitted = admitted.unwrap().result;
            assert!(matches!(admitted, AdmitResult::Advanced(AdvanceResult::Dispatched { .. })), "{admitted:?}");
        }
    }

    async fn run_slices(&self, mut slices: Vec<Slice>) {
        let mut view = View::default();
        let bounds = self.store.bounds();
        let ends: Vec<EndCalls> = if self.has_facts { slices.iter().map(end_of_facts).collect() } else { Vec::new() };
        if self.has_facts {
            let epoch = self.store.state().epoch;
            let begins: Vec<Begin<'_>> = slices.iter().map(|slice| begin(slice, epoch, bounds.lease_ms)).collect();
            let begun = self.store.decide_with(&mut view, &begins).await.unwrap();
            for (slice, begun) in slices.iter_mut().zip(begun) {
                let BeginResult::Started(started) = begun.unwrap().result else { panic!("it did not begin") };
                slice.advance(started.version, started.turn);
            }
        }
        let results: Vec<[RenderedCall; 1]> = slices.iter().map(|slice| [result(slice)]).collect();
        let frames: Vec<ReplyFrame> = slices.iter().map(|slice| frame(&slice.name, &slice.turn.head)).collect();
        let sections: Vec<Vec<&dyn Section>> =
            (0..slices.len()).map(|at| ends.get(at).map(|end| end as &dyn Section).into_iter().collect()).collect();
        let settle = |(at, slice): (usize, _)| Settle {
            slice,
            results: &results[at],
            frame: &frames[at],
            sections: &sections[at],
            reason: None,
            canceled: None,
            bounds: &bounds,
        };
        let settles: Vec<Settle<'_>> = slices.iter().enumerate().map(settle).collect();
        for settled in self.store.decide_with(&mut view, &settles).await.unwrap() {
            assert_eq!(settled.unwrap().result, SettleResult::Ended);
        }
    }

    /// Returns the instructions of Redis per turn.
    async fn cost(&mut self, batch: usize, rounds: usize) -> u64 {
        self.control("-z");
        self.play(batch, rounds).await;
        self.counted() / (batch * rounds) as u64
    }

    /// Returns the instructions of Redis per entry, on average over at least `entries` entries.
    async fn cost_of_sealing(&mut self, entries: usize) -> u64 {
        let mut sealing = Sealing::new();
        sealing.seal_all(&self.store).await;
        self.play(100, entries.div_ceil(100)).await;
        self.control("-z");
        let sealed = sealing.seal_all(&self.store).await;
        assert!(sealed >= entries, "{sealed}");
        self.counted() / sealed as u64
    }

    fn counted(&mut self) -> u64 {
        self.control("-d");
        self.dumps += 1;
        let dumped = self.dir.join(format!("out.{}.{}", self.server.pid(), self.dumps));
        let text = std::fs::read_to_string(&dumped).unwrap();
        let summary = text.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
        summary.trim().parse().unwrap()
    }

    fn control(&self, what: &str) {
        let pid = self.server.pid().to_string();
        assert!(Command::new("callgrind_control").args([what, &pid]).output().unwrap().status.success());
    }
}

const FACTS: &str = "facts";
const DIGEST: &str = "0123456789abcdef0123456789abcdef";
const CALL: &str = r#"{"id":"call_0","name":"echo","arguments":{"text":"It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was the epoch"}}"#;
const MESSAGE: &str = r#"{"tenant":"bench","agent":"a1","reply_to":"bench","calls":[{"id":"call_0","name":"echo","arguments":{"text":"It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was the epoch"}}]}"#;

fn tenant() -> TenantId {
    TenantId::new("bench").unwrap()
}

fn session(slice: &Slice) -> SessionName {
    let head = &slice.turn.head;
    SessionName::new(&slice.name.tenant, &FactRow::default().session(&head.agent, None, &head.context))
}

fn begin(slice: &Slice, epoch: u64, lease_ms: i64) -> Begin<'_> {
    let condition = Condition { fact: "read_untrusted".into(), required: false, shadow: false };
    let change = PossibleFactChange { fact: "has_asked".into(), sets: true, kept_ms: FACT_KEPT_MS };
    Begin {
        slice,
        position: 0,
        by: "w1",
        once: false,
        is_durable: false,
        epoch,
        lease_ms,
        streak: None,
        facts: Some(CheckFacts { session: session(slice), conditions: vec![condition], changes: vec![change] }),
        consent: None,
        claim: None,
        cache: None,
    }
}

fn end_of_facts(slice: &Slice) -> EndCalls {
    let changed =
        AppliedFactChange { fact: "has_asked".into(), transition: FactTransition::Set, kept_ms: FACT_KEPT_MS };
    let call = CallName::new(slice.name.turn.clone(), 0);
    EndCalls { session: session(slice), calls: vec![EndedCall { call, changes: Some(vec![changed]) }] }
}

fn result(slice: &Slice) -> RenderedCall {
    let turn = &slice.name.turn;
    let result = format!(
        r#"{{"tool_call_id":"call_0","tool":"echo","success":true,"outcome":"ok","output":{CALL},"duration_ms":0,"attempts":1}}"#
    );
    let audit =
        format!(r#"{{"agent":"a1","tool_name":"echo","turn_id":"{turn}","outcome":"ok","action_args":{CALL}}}"#);
    RenderedCall { result: result.into(), audit: audit.into(), ..RenderedCall::default() }
}

#[tokio::test]
#[ignore = "needs valgrind, and measures"]
async fn instructions_of_a_turn() {
    let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().unwrap();
    let with = [
        ("no limit", vec![]),
        (FACTS, vec![]),
        ("a tool's part of the slots", vec![bulkhead()]),
        ("tenants' shares of the slots", vec![fairness()]),
        ("both", vec![bulkhead(), fairness()]),
        ("caps as rows", caps()),
        ("three limits that count every call", three()),
    ];
    for (number, (what, limits)) in with.into_iter().enumerate() {
        // Existing data affects the cost, so each measurement begins with an empty Redis.
        let dir = dir.path().join(number.to_string());
        std::fs::create_dir(&dir).unwrap();
        let mut measured = MeasuredRedis::start(&dir, limits, what == FACTS).await;
        measured.play(1, 10).await;
        for (batch, rounds) in [(1, 300), (10, 60), (100, 20)] {
            let cost = measured.cost(batch, rounds).await;
            println!("{cost:>9} instructions of Redis a turn, in batches of {batch}, with {what}");
        }
        if number == 0 {
            let cost = measured.cost_of_sealing(SEALED_AT_ONCE).await;
            println!("{cost:>9} instructions of Redis for an audit entry that is sealed, {SEALED_AT_ONCE} at once");
        }
    }
}
