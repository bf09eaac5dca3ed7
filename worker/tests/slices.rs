//! A worker on a shard in memory, without a scheduler: the tests put slices on its queues.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tickfleet_core::audit::AuditEntry;
use tickfleet_core::keys::{self, TurnName};
use tickfleet_core::settings::drain::{ChangeDrain, DrainChange};
use tickfleet_core::task::cancel::Cancel;
use tickfleet_core::transaction::CounterKey;
use tickfleet_core::turn::slice::dispatch;
use tickfleet_core::turn::state::Finished;
use tickfleet_core::turn::{Destination, Head, State, Suspect, Turn};
use tickfleet_core::view::{Undecided, View};
use tickfleet_core::workers::{self, Consumer, notify_cancel};
use tickfleet_core::{Context, Decision, Query, Step, StreamKey, Transaction, Value, Write};
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::one_suspect::OneSuspect;
use tickfleet_engine::report::ReportOptions;
use tickfleet_model::policy::{AgentPolicy, Pause, TenantPolicy, ToolGrant};
use tickfleet_model::retry::Ladder;
use tickfleet_model::{AgentId, Call, Dialect, Durability, InboxName, Priorities, Priority, TenantId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::seam::Take;
use tickfleet_store::seam::memory::{MemoryOptions, MemoryStore};
use tickfleet_store::{Store, StoreOptions, worker_of};
use tickfleet_tools::{Environment, Registry};
use tokio::task::JoinHandle;
use worker::{Breakers, Options, Surroundings, Worker};

const LEASE_MS: i64 = 400;
/// The time within which everything has happened.
const SOON: Duration = Duration::from_secs(20);

/// A turn that is dispatched without an admission.
struct Dispatch {
    name: TurnName,
    turn: Turn,
    calls: Vec<Call>,
}

impl Decision for Dispatch {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        let calls: Vec<Bytes> =
            self.calls.iter().map(|call| serde_json::to_vec(call).unwrap_or_default().into()).collect();
        let mut turn = self.turn.clone();
        dispatch(&mut transaction, &self.name, &mut turn, &calls);
        for (limit, amount) in [
            (keys::limits::OUT, 1),
            (keys::limits::UNFINISHED, 1),
            (keys::limits::BYTES, i64::try_from(turn.bytes).unwrap_or(0)),
        ] {
            let counter = CounterKey::new(limit, self.name.tenant.as_str());
            transaction.write(Write::Add { counter, amount, ends_ms: None });
        }
        Ok(Step::Commit(transaction, ()))
    }
}

/// A cancel's notice for the holder of a slice, as the turn's timer writes it.
struct Notify {
    name: TurnName,
    holder: Arc<str>,
}

impl Decision for Notify {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        notify_cancel(&self.name, &self.holder, context.now_ms, &mut transaction);
        Ok(Step::Commit(transaction, ()))
    }
}

/// A worker that runs.
struct Shard {
    memory: MemoryStore,
    store: Store,
    shutdown: Shutdown,
    running: JoinHandle<()>,
}

impl Shard {
    async fn start() -> Self {
        let memory = MemoryStore::new(MemoryOptions { lease_ms: LEASE_MS, ..MemoryOptions::default() });
        let options = StoreOptions { lease_ms: LEASE_MS, ..StoreOptions::default() };
        let store = Store::in_memory(memory.clone(), 0, Arc::new(options));
        let shutdown = Shutdown::default();
        let worker = worker(store.clone(), &shutdown);
        let running = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { worker.run(shutdown).await.expect("the shard is usable") }
        });
        Self { memory, store, shutdown, running }
    }

    async fn dispatch(&self, id: &str, calls: &[(&str, &str)]) {
        self.dispatch_as(id, calls, None).await;
    }

    async fn dispatch_as(&self, id: &str, calls: &[(&str, &str)], suspect: Option<Suspect>) {
        let now_ms = self.store.refresh_state().await.unwrap().now_ms;
        let turn = turn(now_ms, calls.len(), suspect);
        let call = |(tool, arguments): &(&str, &str)| Call {
            provider_id: None,
            tool: (*tool).to_owned(),
            arguments: (*arguments).to_owned(),
        };
        let calls = calls.iter().map(call).collect();
        self.store.decide(Dispatch { name: name(id), turn, calls }).await.unwrap();
    }

    /// The reply of a turn, once it has ended.
    async fn reply(&self, id: &str) -> serde_json::Value {
        let finished = self.until(|| async move {
            self.store.record_of::<Finished>(&name(id).finished()).await.unwrap().map(|stored| stored.value)
        });
        serde_json::from_str(&finished.await.reply).unwrap()
    }

    async fn record(&self, id: &str) -> Option<Turn> {
        self.store.record_of::<Turn>(&name(id).record()).await.unwrap().map(|stored| stored.value)
    }

    /// Waits until `look` finds something.
    async fn until<T, Looking: Future<Output = Option<T>>>(&self, look: impl Fn() -> Looking) -> T {
        let found = async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                // Polls the store.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, found).await.expect("it happens soon")
    }

    /// The worker's consumer.
    async fn consumer(&self) -> Arc<str> {
        self.until(|| async {
            let first = Query::First { set: workers::consumers(), upto: None, count: 1 };
            match self.store.query(first).await.unwrap() {
                Value::Members(members) => members.first().map(|(name, _)| name.clone()),
                _ => None,
            }
        })
        .await
    }

    async fn held(&self, queue: StreamKey) -> u64 {
        self.store.seam().backlog(&queue).await.unwrap().held
    }

    async fn stop(self) {
        self.shutdown.drain();
        tokio::time::timeout(SOON, self.running).await.expect("it stops soon").unwrap();
        for queue in Priority::ALL.into_iter().flat_map(|priority| [keys::ready(priority), keys::suspect(priority)]) {
            assert_eq!(self.store.seam().backlog(&queue).await.unwrap().held, 0, "{queue}");
        }
    }
}

fn worker(store: Store, shutdown: &Shutdown) -> Arc<Worker> {
    let every = ToolGrant { everyone: true, ..ToolGrant::default() };
    let mut active = ActivePolicy { digest: "test".into(), ..ActivePolicy::default() };
    for tool in ["echo", "sleep", "fail", "fail_once"] {
        active.policy.permissions.matrix.insert(tool.into(), every.clone());
    }
    active.policy.tenants.insert(TenantId::new("acme").unwrap(), TenantPolicy::default());
    active.policy.agents = Arc::new([(AgentId::new("kelly").unwrap(), AgentPolicy::default())].into());
    let active = Arc::new(PolicyHandle::new(active));
    let environment = Environment::of([]);
    let mut registry = Registry::default();
    for tool in worker::standard_tools(&store, &active) {
        let (spec, handler) = tool.into_parts(Duration::from_secs(30), &environment);
        registry.register(tickfleet_tools::RegisteredTool::new(spec, handler).unwrap()).unwrap();
    }
    let surroundings = Surroundings {
        active,
        metrics: Arc::new(Metrics::new().unwrap()),
        progress: Progress::default(),
        suspects: OneSuspect::default(),
        breakers: Breakers::new(None),
        registry: Arc::new(registry),
        task_handlers: worker::agents::TaskHandlers::new(),
    };
    let options = Options {
        slots: 4,
        priorities: Priorities::default(),
        drain: Duration::from_secs(5),
        ladder: Ladder::new([10, 20, 30].map(Duration::from_millis).into()),
        durable: Durability::None,
        durable_wait: Duration::from_millis(500),
        loops: None,
        report: ReportOptions::default(),
        name: "one".into(),
    };
    Worker::new(store, surroundings, options, shutdown.now.clone())
}

fn name(id: &str) -> TurnName {
    TurnName::parse(&format!("acme:{id}")).unwrap()
}

fn turn(now_ms: i64, calls: usize, suspect: Option<Suspect>) -> Turn {
    let head = Head {
        agent: AgentId::new("kelly").unwrap(),
        dialect: Dialect::Raw,
        reply_to: Some(InboxName::new("main").unwrap()),
        deadline_ms: now_ms + 60_000,
        submitted_ms: now_ms,
        digest: "0a".into(),
        calls,
        want_audits: false,
        strict: false,
        allowed_tools: None,
        parallel_reads: false,
        pending_approval: false,
        context: tickfleet_model::Context::default(),
        task: None,
        delegated_by: None,
        span: None,
    };
    Turn {
        head,
        destination: Destination::Workers(Priority::Normal),
        place: 1,
        admitted_ms: now_ms,
        bytes: 100,
        given: false,
        position: 0,
        debited: calls,
        attempts: 0,
        retries: 0,
        crashes: u32::from(suspect.is_some()),
        unreadable: 0,
        may_have_run: false,
        worked_elsewhere: false,
        begun: None,
        canceled: None,
        suspect,
        entry: None,
        permits: Vec::new(),
        session: None,
        approval: None,
        task: None,
        notes: Vec::new(),
        state: State::Ready { upto: calls },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_is_carried_out_and_its_turn_replies() {
    let shard = Shard::start().await;
    shard
        .dispatch("t1", &[("echo", r#"{"text":"hi"}"#), ("fail_once", r#"{"outcomes":["ok"]}"#), ("none", "{}")])
        .await;
    let reply = shard.reply("t1").await;
    let outcomes: Vec<&str> =
        reply["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "ok", "unknown_tool"], "{reply}");
    assert_eq!(reply["results"][0]["output"]["text"], "hi");
    let inbox = Query::Entries { stream: StreamKey::new("replies:acme:main"), after: None, count: 9 };
    let Value::Entries(replies) = shard.store.query(inbox).await.unwrap() else { panic!("no entries") };
    assert_eq!(replies.len(), 1);
    assert!(shard.record("t1").await.is_none());
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_suspects_runs_together_and_a_lone_one_alone() {
    let shard = Shard::start().await;
    // They stay on the queue until all are there.
    let group = |group_max| Some(Suspect { group_max, lone_crashes: 0 });
    for (id, group_max) in [("a", 2), ("b", 2), ("c", 1), ("d", 2)] {
        shard.dispatch_as(id, &[("sleep", r#"{"ms":300}"#)], group(group_max)).await;
    }
    let running = || async {
        let mut running = Vec::new();
        for id in ["a", "b", "c", "d"] {
            let state = shard.record(id).await.map(|turn| turn.state);
            running.extend(matches!(state, Some(State::Running { .. })).then_some(id));
        }
        running
    };
    let mut most: usize = 0;
    loop {
        let now = running().await;
        assert!(!now.contains(&"c") || now.len() == 1, "{now:?}: one that must run alone has company");
        assert!(now.len() <= 2, "{now:?}: more than a group");
        most = most.max(now.len());
        let mut left = 0;
        for id in ["a", "b", "c", "d"] {
            left += usize::from(shard.record(id).await.is_some());
        }
        if left == 0 {
            break;
        }
        // Polls the store.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(most, 2, "no group ran together");
    for id in ["a", "b", "c", "d"] {
        assert_eq!(shard.reply(id).await["results"][0]["outcome"], "ok");
    }
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_call_stops_when_its_turn_is_canceled() {
    let shard = Shard::start().await;
    shard.dispatch("t1", &[("sleep", r#"{"ms":30000}"#), ("echo", "{}")]).await;
    let queue = keys::ready(Priority::Normal);
    shard.until(|| async { (shard.held(queue.clone()).await == 1).then_some(()) }).await;
    let bounds = shard.store.bounds();
    let cancel = Cancel { name: name("t1"), reason: "enough".into(), above: None, bounds: &bounds };
    shard.store.decide(cancel).await.unwrap();
    let holder = shard.consumer().await;
    shard.store.decide(Notify { name: name("t1"), holder }).await.unwrap();
    let reply = shard.reply("t1").await;
    assert_eq!(reply["results"][0]["outcome"], "cancelled", "{reply}");
    assert_eq!(reply["results"][1]["outcome"], "cancelled", "{reply}");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_worker_takes_nothing_until_it_is_resumed() {
    let shard = Shard::start().await;
    let consumer = shard.consumer().await;
    let worker = worker_of(&consumer).unwrap().to_owned();
    let entry = || AuditEntry { text: Bytes::from_static(b"{}"), entries_max: 10 };
    let note = Pause { by: "op".into(), reason: "upgrade".into(), since_ms: 1 };
    let change = DrainChange::Drain { note, gone: Vec::new(), entry: entry() };
    shard.store.decide(ChangeDrain { worker: worker.clone(), change }).await.unwrap();
    let key = workers::key(&consumer);
    let is_drained = |drained| {
        let key = key.clone();
        let store = shard.store.clone();
        async move {
            let stored = store.record_of::<Consumer>(&key).await.unwrap()?;
            (stored.value.drained == drained).then_some(())
        }
    };
    shard.until(|| is_drained(true)).await;
    // A take in progress ends within a quarter of a lease.
    tokio::time::sleep(Duration::from_millis(LEASE_MS.unsigned_abs())).await;
    shard.dispatch("t1", &[("echo", "{}")]).await;
    // Nothing happens for a lease.
    tokio::time::sleep(Duration::from_millis(LEASE_MS.unsigned_abs())).await;
    assert_eq!(shard.held(keys::ready(Priority::Normal)).await, 0);
    assert!(shard.record("t1").await.is_some());
    let change = DrainChange::Resume { entry: entry() };
    shard.store.decide(ChangeDrain { worker, change }).await.unwrap();
    assert_eq!(shard.reply("t1").await["results"][0]["outcome"], "ok");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_that_the_worker_holds_and_does_not_run_goes_back() {
    let shard = Shard::start().await;
    let consumer = shard.consumer().await;
    // A take whose response is lost: of a queue that the worker waits for, the test is faster now and then.
    let take = Take { consumer, queues: vec![keys::ready(Priority::Low)], count: 1, wait_ms: 0 };
    let mut number = 0;
    let stray = loop {
        number += 1;
        let id = format!("t{number}");
        let now_ms = shard.store.refresh_state().await.unwrap().now_ms;
        let turn = Turn { destination: Destination::Workers(Priority::Low), ..turn(now_ms, 1, None) };
        let calls = vec![Call { provider_id: None, tool: "echo".into(), arguments: "{}".into() }];
        shard.store.decide(Dispatch { name: name(&id), turn, calls }).await.unwrap();
        if !shard.store.seam().take(&take).await.unwrap().is_empty() {
            break id;
        }
        assert!(number < 10_000, "the worker is always faster");
    };
    assert_eq!(shard.reply(&stray).await["results"][0]["outcome"], "ok");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_continues_after_a_restart_of_the_store() {
    let shard = Shard::start().await;
    shard.dispatch("t1", &[("sleep", r#"{"ms":300}"#), ("fail_once", r#"{"outcomes":["ok"]}"#)]).await;
    let queue = keys::ready(Priority::Normal);
    shard.until(|| async { (shard.held(queue.clone()).await == 1).then_some(()) }).await;
    shard.memory.restart().await.unwrap();
    shard.dispatch("t2", &[("fail_once", r#"{"outcomes":["ok"]}"#)]).await;
    for (id, at) in [("t1", 1), ("t2", 0)] {
        let reply = shard.reply(id).await;
        assert_eq!(reply["results"][at]["outcome"], "ok", "{reply}");
    }
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_worker_hands_back_what_it_has_not_run() {
    let shard = Shard::start().await;
    let ids: Vec<String> = (0..8).map(|number| format!("t{number}")).collect();
    for id in &ids {
        shard.dispatch(id, &[("sleep", r#"{"ms":100}"#)]).await;
    }
    let queue = keys::ready(Priority::Normal);
    shard.until(|| async { (shard.held(queue.clone()).await > 0).then_some(()) }).await;
    let store = shard.store.clone();
    shard.stop().await;
    let waiting = store.seam().backlog(&queue).await.unwrap().waiting;
    let mut unfinished = 0;
    for id in &ids {
        unfinished += u64::from(store.record_of::<Turn>(&name(id).record()).await.unwrap().is_some());
    }
    assert_eq!(waiting, unfinished);
}
