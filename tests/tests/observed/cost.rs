//! What a turn costs Redis, in instructions: unlike microseconds, they are the same on a busy machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tickfleet_model::Context;
use tickfleet_model::limit::counters::Debits;
use tickfleet_model::limit::{Every, LimitBound, LimitKey, LimitMatch, LimitMode, OnReach};
use tickfleet_model::policy::{Becomes, FactRow};
use tickfleet_model::{AgentId, Caps, ConsumerId, DayCapAction, InboxName, Limit, Priority, TenantId, TurnId};
use tickfleet_ops::redis_server::{PrivateRedis, ServerOptions};
use tickfleet_proof::seal::{ChainName, Head, Leaf, Losses, Signer, seal};
use tickfleet_store::{
    Admission, AdmitReply, Admitted, AskedFact, ChangedFact, CounterDebits, Entered, Entry, FactsEnd, FactsEntry,
    Generations, LimitRow, MayChange, PolicyRow, Queue, Reader, ReplyFrame, SealReply, SealRow, Sealer, Settled,
    SettledCall, Settlement, SliceMeta, Store, StoreOptions, TurnName,
};
use tickfleet_testkit::connect;

const DAY_MS: i64 = 86_400_000;
/// Agents that the turns are spread over: none of them comes to its cap.
const AGENTS: usize = 3_000;
/// Places of a limit: more than are ever taken.
const PLACES: u64 = 100_000;
/// Entries that one step of a sealer reads.
const SEALED_AT_ONCE: usize = 500;
/// For how long a fact is kept, ms.
const FACT_KEPT_MS: i64 = DAY_MS;

/// A Redis under callgrind, with a scheduler and a worker in one hand.
struct Measured {
    server: PrivateRedis,
    dir: PathBuf,
    store: Store,
    turns: Reader,
    ready: Reader,
    connection: MultiplexedConnection,
    number: usize,
    dumps: usize,
    /// Limits of the slots that count every call.
    limits: Vec<Limit>,
    /// Whether each call goes by a fact of its session and sets another.
    has_facts: bool,
}

/// A sealer of the audit log, as a scheduler has one.
struct Sealing {
    signer: Signer,
    head: Head,
    /// The last entry that is sealed.
    after: String,
}

impl Sealing {
    fn new() -> Self {
        let signer = Signer::new("seal-1", &"07".repeat(32)).unwrap();
        Self { signer, head: Head::default(), after: String::new() }
    }

    /// Seals what there is, in as many steps as a scheduler does; answers how many entries that were.
    async fn seal_all(&mut self, store: &Store) -> usize {
        let mut count = 0;
        let (name, public_key) = (ConsumerId::new("s1").unwrap(), self.signer.public_key());
        let sealer = Sealer { name: &name, lease_ms: 10_000, key_id: "seal-1", public_key: &public_key };
        let chain = ChainName { fleet: "bench".into(), shard: 0, tenant: "bench".into() };
        loop {
            let taken = store.seal(sealer, &self.after, &self.after, &[]).await.unwrap();
            let SealReply::Done { now_ms, .. } = taken else { panic!("{taken:?}") };
            let after = if self.after.is_empty() { "0-0" } else { &self.after };
            let page = store.log_page(after, SEALED_AT_ONCE).await.unwrap();
            let leaf =
                |entry: &tickfleet_store::LogEntry| Leaf::of(entry.id.parse().unwrap(), &entry.admitted, &entry.text);
            let leaves: Vec<Leaf> = page.entries.iter().map(leaf).collect();
            let Some(last) = page.entries.last() else { return count };
            let sealed = seal(&chain, &self.head, &leaves, &Losses::default(), now_ms, &self.signer);
            let (head, body, signature) = (sealed.head.to_string(), sealed.body, sealed.signature);
            let row = SealRow { tenant: "bench".into(), head, body, signature };
            let done = store.seal(sealer, &self.after, &last.id, &[row]).await.unwrap();
            assert!(matches!(done, SealReply::Done { .. }), "{done:?}");
            (self.head, self.after) = (sealed.head, last.id.clone());
            count += leaves.len();
            if leaves.len() < SEALED_AT_ONCE {
                return count;
            }
        }
    }
}

/// A limit of the slots that never holds a turn up here.
fn of_slots(name: &str, key: LimitKey, bound: LimitBound) -> Limit {
    Limit {
        name: name.into(),
        matches: LimitMatch::default(),
        per: [key].into(),
        bound,
        every: Every::Held,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: PLACES,
    }
}

/// What the caps of an agent's tick and day, and of a tenant's day, would be as rows.
fn caps() -> Vec<Limit> {
    let of =
        |name: &str, key: LimitKey, every: Every| Limit { every, ..of_slots(name, key, LimitBound::Calls(PLACES)) };
    vec![
        of("agent_tick", LimitKey::Agent, Every::Tick),
        of("agent_day", LimitKey::Agent, Every::Day),
        of("tenant_day", LimitKey::Tenant, Every::Day),
    ]
}

/// What `tickfleet bench --limits` gives every call to debit: a counter of its agent, and two that all calls share.
fn three() -> Vec<Limit> {
    let of =
        |name: &str, key: LimitKey, every: Every| Limit { every, ..of_slots(name, key, LimitBound::Calls(PLACES)) };
    vec![
        of("of_agents", LimitKey::Agent, Every::Day),
        of("of_tenants", LimitKey::Tenant, Every::Period(3_600_000)),
        of("of_tools", LimitKey::Tool, Every::Period(60_000)),
    ]
}

/// What `per: [tool], concurrent: 25%` is.
fn bulkhead() -> Limit {
    of_slots("tool_slots", LimitKey::Tool, LimitBound::Part(25))
}

/// What `per: [tenant], concurrent: share` is.
fn fairness() -> Limit {
    of_slots("tenant_slots", LimitKey::Tenant, LimitBound::Share(1))
}

/// A program that starts Redis under callgrind.
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

impl Measured {
    async fn start(dir: &Path) -> Self {
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
        let reader = |name: &str| store.reader(&ConsumerId::new(name).unwrap(), Duration::from_millis(100));
        let (turns, ready) = (reader("s1"), reader("w1"));
        let connection = connect(&server.url()).await.unwrap();
        Self {
            server,
            dir: dir.to_owned(),
            store,
            turns,
            ready,
            connection,
            number: 0,
            dumps: 0,
            limits: Vec::new(),
            has_facts: false,
        }
    }

    /// Turns of one call, from the submit to the reply, in batches.
    async fn play(&mut self, batch: usize, rounds: usize) {
        for _ in 0..rounds {
            let mut submit = redis::pipe();
            for _ in 0..batch {
                submit.cmd("XADD").arg(self.store.keys().key("turns")).arg("*").arg("turn").arg(MESSAGE).ignore();
            }
            submit.query_async::<()>(&mut self.connection).await.unwrap();
            let entries = read(&mut self.turns, "turns", batch).await;
            self.admit(&entries).await;
            let slices = read(&mut self.ready, "ready:normal", batch).await;
            if self.has_facts {
                let entered = self.store.enter(&slices.iter().map(fact_entry).collect::<Vec<_>>()).await.unwrap();
                let entered: Vec<Entered> = entered.into_iter().map(|it| it.entered).collect();
                assert_eq!(entered, vec![Entered::Ok(Vec::new()); batch]);
            }
            let settlements: Vec<_> = slices.iter().map(|slice| settlement(slice, self.has_facts)).collect();
            assert_eq!(self.store.settle(&settlements).await.unwrap(), vec![Settled::Done; batch]);
        }
    }

    async fn admit(&mut self, entries: &[Entry]) {
        let now_ms = self.store.now_ms().await.unwrap();
        let caps = Caps {
            tick_ms: 5_000,
            calls_per_tick: 10,
            calls_per_day: 1_000_000,
            tenant_calls_per_day: None,
            on_day_cap: DayCapAction::Reject,
        };
        let day_start_ms = now_ms - now_ms.rem_euclid(DAY_MS);
        let row = PolicyRow { caps, day_start_ms, day_end_ms: day_start_ms + DAY_MS };
        let turns: Vec<Admission> = entries.iter().map(|entry| self.admission(entry, now_ms + DAY_MS)).collect();
        let row_of = |limit| LimitRow::new(limit, (0, 1), 5_000, (row.day_start_ms, row.day_end_ms)).with_max(PLACES);
        let rows: Vec<LimitRow> = self.limits.iter().map(row_of).collect();
        let reply = self.store.admit(Generations { policy: 0, tenants: 0 }, &[row], &rows, &turns).await.unwrap();
        let AdmitReply::Decided { turns, .. } = reply else { panic!("{reply:?}") };
        assert!(turns.iter().all(|turn| matches!(turn, Admitted::Dispatched)), "{turns:?}");
    }

    fn admission(&mut self, entry: &Entry, deadline_ms: i64) -> Admission {
        self.number += 1;
        let agent = AgentId::new(format!("a{}", self.number % AGENTS)).unwrap();
        let meta =
            format!(r#"{{"ag":"{agent}","rt":"bench","dl":{deadline_ms},"ts":{deadline_ms},"dg":"{DIGEST}","n":1}}"#);
        assert!(serde_json::from_str::<SliceMeta>(&meta).is_ok());
        Admission {
            entry: entry.id.clone(),
            tenant: TenantId::new("bench").unwrap(),
            counters: self.counters(&agent),
            agent,
            turn: TurnId::new(format!("t{}", entry.id)).unwrap(),
            given: false,
            digest: DIGEST.into(),
            policy: 0,
            priority: Priority::Normal,
            deadline_ms,
            stagger_ms: 100,
            reply_to: Some(inbox()),
            task: None,
            meta,
            calls: vec![CALL.into()],
        }
    }

    /// What one call debits of each limit.
    fn counters(&self, agent: &AgentId) -> Vec<CounterDebits> {
        let of = |(row, limit): (usize, &Limit)| {
            let key = match limit.per.first() {
                Some(LimitKey::Agent) => format!("bench:{agent}"),
                Some(LimitKey::Tool) => "echo".to_owned(),
                _ => "bench".to_owned(),
            };
            CounterDebits { row, stagger_ms: 0, debits: Debits { limit: row, key, amounts: vec![Some(1)] } }
        };
        self.limits.iter().enumerate().map(of).collect()
    }

    /// Instructions of Redis for one of these turns.
    async fn cost(&mut self, batch: usize, rounds: usize) -> u64 {
        self.control("-z");
        self.play(batch, rounds).await;
        self.counted() / (batch * rounds) as u64
    }

    /// Instructions of Redis for each entry that is sealed, of so many.
    async fn cost_of_sealing(&mut self, entries: usize) -> u64 {
        let mut sealing = Sealing::new();
        sealing.seal_all(&self.store).await;
        self.play(100, entries.div_ceil(100)).await;
        self.control("-z");
        let sealed = sealing.seal_all(&self.store).await;
        assert!(sealed >= entries, "{sealed}");
        self.counted() / sealed as u64
    }

    /// Instructions of Redis since they were counted last.
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

fn inbox() -> InboxName {
    InboxName::new("bench").unwrap()
}

async fn read(reader: &mut Reader, stream: &str, count: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    while entries.len() < count {
        entries.extend(reader.take(stream, 256).await.unwrap());
    }
    entries
}

fn name_of(entry: &Entry) -> TurnName {
    TurnName::parse(std::str::from_utf8(entry.field("t").unwrap()).unwrap()).unwrap()
}

/// The agent of a slice, as its meta says.
fn agent_of(entry: &Entry) -> AgentId {
    let meta: SliceMeta = serde_json::from_slice(entry.field("m").unwrap()).unwrap();
    meta.agent
}

/// A call that enters its agent's session: one fact may not be set there, and its end sets another.
fn fact_entry(entry: &Entry) -> FactsEntry {
    FactsEntry {
        name: name_of(entry),
        fence: entry.id.clone(),
        position: 0,
        digest: DIGEST.into(),
        session: FactRow::default().session(&agent_of(entry), None, &Context::default()),
        conditions: vec![AskedFact { fact: "read_untrusted".into(), required: false, shadow: false }],
        changes: vec![MayChange { fact: "has_asked".into(), sets: true, kept_ms: FACT_KEPT_MS }],
        knows: None,
        submitted_ms: 0,
        looks: false,
    }
}

/// What the end of such a call does.
fn facts_end(entry: &Entry) -> FactsEnd {
    let changed = ChangedFact { fact: "has_asked".into(), becomes: Becomes::Set, kept_ms: FACT_KEPT_MS };
    FactsEnd { session: fact_entry(entry).session, changes: vec![changed] }
}

/// The settlement of a slice as its worker makes it.
fn settlement(entry: &Entry, has_facts: bool) -> Settlement {
    let name = name_of(entry);
    let turn = &name.turn;
    let head =
        format!(r#"{{"turn_id":"{turn}","tenant":"bench","agent":"a1","status":"done","dialect":"raw","results":["#);
    let result = format!(
        r#"{{"tool_call_id":"call_0","tool":"echo","success":true,"outcome":"ok","output":{CALL},"duration_ms":0,"attempts":1}}"#
    );
    let audit =
        format!(r#"{{"agent":"a1","tool_name":"echo","turn_id":"{turn}","outcome":"ok","action_args":{CALL}}}"#);
    Settlement {
        fence: entry.id.clone(),
        queue: Some(Queue::Ready(Priority::Normal)),
        first: 0,
        reply_to: Some(inbox()),
        frame: ReplyFrame { head, calls: Some(1), ..ReplyFrame::default() },
        calls: vec![SettledCall {
            result,
            audit,
            facts: has_facts.then(|| facts_end(entry)),
            ..SettledCall::default()
        }],
        name,
    }
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
        // Each begins with an empty Redis: what is in it has its cost, too.
        let dir = dir.path().join(number.to_string());
        std::fs::create_dir(&dir).unwrap();
        let mut measured = Measured { limits, has_facts: what == FACTS, ..Measured::start(&dir).await };
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
