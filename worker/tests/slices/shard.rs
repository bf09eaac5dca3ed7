//! A worker on a shard in memory, without a scheduler: the tests put slices on its queues.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tickfleet_config::{Part, Sources, WorkerSettings};
use tickfleet_core::call::EndUnreported;
use tickfleet_core::keys::{self, TurnName};
use tickfleet_core::transaction::CounterKey;
use tickfleet_core::turn::slice::dispatch;
use tickfleet_core::turn::state::Finished;
use tickfleet_core::turn::{Destination, Due, Head, State, Suspect, Turn};
use tickfleet_core::view::{Undecided, View};
use tickfleet_core::workers::{self, notify_cancel};
use tickfleet_core::{Context, Decision, Query, RecordKey, Step, StreamKey, Transaction, Value, Write};
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::{Renderer, ReportOptions};
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_model::policy::{AgentPolicy, Policy, TenantPolicy, ToolGrant};
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{AgentId, Call, Dialect, InboxName, Priority, TenantId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::seam::memory::{MemoryOptions, MemoryStore};
use tickfleet_store::{Store, StoreOptions};
use tickfleet_tools::{Environment, Registry, TypedTool};
use tokio::task::JoinHandle;
use worker::{Breakers, LoopOptions, ProcessParts, Worker, WorkerOptions};

pub const LEASE_MS: i64 = 400;
const SOON: Duration = Duration::from_secs(20);

pub struct Dispatch {
    pub name: TurnName,
    pub turn: Turn,
    pub calls: Vec<Call>,
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
            (keys::limits::IN_FLIGHT, 1),
            (keys::limits::UNFINISHED, 1),
            (keys::limits::BYTES, i64::try_from(turn.bytes).unwrap_or(0)),
        ] {
            let counter = CounterKey::new(limit, self.name.tenant.as_str());
            transaction.write(Write::Add { counter, amount, ends_ms: None });
        }
        Ok(Step::Commit(transaction, ()))
    }
}

pub struct Notify {
    pub name: TurnName,
    pub holder: Arc<str>,
}

impl Decision for Notify {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        notify_cancel(&self.name, &self.holder, context.now_ms, &mut transaction);
        Ok(Step::Commit(transaction, ()))
    }
}

pub struct Shard {
    pub memory: MemoryStore,
    pub store: Store,
    pub shutdown: Shutdown,
    pub running: JoinHandle<()>,
}

impl Shard {
    pub async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    pub async fn start_with(set_up: impl FnOnce(&mut ActivePolicy, &mut Setup)) -> Self {
        Self::start_for(LEASE_MS, set_up).await
    }

    pub async fn start_for(lease_ms: i64, set_up: impl FnOnce(&mut ActivePolicy, &mut Setup)) -> Self {
        let memory = MemoryStore::new(MemoryOptions { lease_ms, ..MemoryOptions::default() });
        let options = StoreOptions { lease_ms, ..StoreOptions::default() };
        let store = Store::in_memory(memory.clone(), 0, Arc::new(options));
        let shutdown = Shutdown::default();
        let worker = worker(store.clone(), &shutdown, set_up);
        let running = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { worker.run(shutdown).await.expect("the shard is usable") }
        });
        Self { memory, store, shutdown, running }
    }

    pub async fn fire_timers(&self) {
        let now_ms = self.store.refresh_state().await.unwrap().now_ms;
        let first = Query::First { set: keys::timers(), upto: Some(now_ms.unsigned_abs()), count: 50 };
        let Value::Members(due) = self.store.query(first).await.unwrap() else { return };
        let bounds = self.store.bounds();
        let options = ReportOptions::default();
        let policy = Policy::default();
        let render = Renderer { options: &options, policy: &policy };
        for (timer, _) in due {
            let Some(name) = timer.strip_prefix("turn:").and_then(TurnName::parse) else { continue };
            let due = Due { name: &name, render: &render, sections: &[&EndUnreported], bounds: &bounds };
            self.store.decide(due).await.unwrap();
        }
    }

    pub async fn fire(&self, id: &str) {
        let bounds = self.store.bounds();
        let options = ReportOptions::default();
        let policy = Policy::default();
        let render = Renderer { options: &options, policy: &policy };
        let name = name(id);
        let due = Due { name: &name, render: &render, sections: &[&EndUnreported], bounds: &bounds };
        self.store.decide(due).await.unwrap();
    }

    pub async fn parked(&self, id: &str) {
        self.until(|| async { self.record(id).await.filter(|turn| matches!(turn.state, State::Waiting { .. })) }).await;
    }

    /// Each worker writes the lists when it starts.
    pub async fn tool_lists_written(&self) {
        self.until(|| async {
            let list = Query::Record(RecordKey::new("tools"));
            matches!(self.store.query(list).await.unwrap(), Value::Record(Some(_))).then_some(())
        })
        .await;
    }

    pub async fn settled(&self, commits: u64) {
        self.until(|| async { (self.memory.round_trips().1 >= commits).then_some(()) }).await;
    }

    /// Waits for the result, and handles due timers meanwhile.
    pub async fn result(&self, id: &str, position: usize) -> serde_json::Value {
        let finished = self.until(|| async move {
            self.fire_timers().await;
            self.store.record_of::<Finished>(&name(id).finished()).await.unwrap().map(|stored| stored.value)
        });
        let reply: serde_json::Value = serde_json::from_str(&finished.await.reply).unwrap();
        reply["results"][position].clone()
    }

    pub async fn dispatch(&self, id: &str, calls: &[(&str, &str)]) {
        self.dispatch_as(id, calls, None).await;
    }

    pub async fn dispatch_as(&self, id: &str, calls: &[(&str, &str)], suspect: Option<Suspect>) {
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

    pub async fn reply(&self, id: &str) -> serde_json::Value {
        let finished = self.until(|| async move {
            self.store.record_of::<Finished>(&name(id).finished()).await.unwrap().map(|stored| stored.value)
        });
        serde_json::from_str(&finished.await.reply).unwrap()
    }

    pub async fn record(&self, id: &str) -> Option<Turn> {
        self.store.record_of::<Turn>(&name(id).record()).await.unwrap().map(|stored| stored.value)
    }

    pub async fn until<T, Looking: Future<Output = Option<T>>>(&self, look: impl Fn() -> Looking) -> T {
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

    pub async fn consumer(&self) -> Arc<str> {
        self.until(|| async {
            let first = Query::First { set: workers::consumers(), upto: None, count: 1 };
            match self.store.query(first).await.unwrap() {
                Value::Members(members) => members.first().map(|(name, _)| name.clone()),
                _ => None,
            }
        })
        .await
    }

    pub async fn held(&self, queue: StreamKey) -> u64 {
        self.store.seam().backlog(&queue).await.unwrap().held
    }

    pub async fn stop(self) {
        self.shutdown.drain();
        tokio::time::timeout(SOON, self.running).await.expect("it stops soon").unwrap();
        for queue in Priority::ALL.into_iter().flat_map(|priority| [keys::ready(priority), keys::suspect(priority)]) {
            assert_eq!(self.store.seam().backlog(&queue).await.unwrap().held, 0, "{queue}");
        }
    }
}

#[derive(Default)]
pub struct Setup {
    pub tools: Vec<TypedTool>,
    pub loops: Option<LoopOptions>,
}

fn worker(store: Store, shutdown: &Shutdown, set_up: impl FnOnce(&mut ActivePolicy, &mut Setup)) -> Arc<Worker> {
    let mut active = ActivePolicy { digest: "test".into(), ..ActivePolicy::default() };
    for tool in ["echo", "sleep", "fail", "fail_once"] {
        active.policy.permissions.matrix.insert(tool.into(), everyone());
    }
    active.policy.tenants.insert(TenantId::new("acme").unwrap(), TenantPolicy::default());
    active.policy.agents = Arc::new([(AgentId::new("kelly").unwrap(), AgentPolicy::default())].into());
    let mut setup = Setup::default();
    set_up(&mut active, &mut setup);
    let active = Arc::new(PolicyHandle::new(active));
    let environment = Environment::of([]);
    let mut registry = Registry::default();
    for tool in worker::standard_tools(&store, &active).into_iter().chain(setup.tools) {
        let (spec, handler) = tool.into_parts(Duration::from_secs(30), &environment);
        registry.register(tickfleet_tools::RegisteredTool::new(spec, handler).unwrap()).unwrap();
    }
    let process = ProcessParts {
        active,
        metrics: Arc::new(Metrics::new().unwrap()),
        progress: Progress::default(),
        suspects: SuspectSemaphore::default(),
        breakers: Breakers::new(None),
        registry: Arc::new(registry),
        task_handlers: worker::agents::TaskHandlers::new(),
    };
    let built_in = Sources { part: Part::Settings, ..Sources::default() };
    let options = WorkerOptions {
        settings: WorkerSettings {
            slots: 4,
            drain: Duration::from_secs(5),
            retry_delays: RetryDelays::new([10, 20, 30].map(Duration::from_millis).into()),
            ..tickfleet_config::load(&built_in).unwrap().settings.worker
        },
        loops: setup.loops,
        report: ReportOptions::default(),
        name: "one".into(),
    };
    Worker::new(store, process, options, shutdown.now.clone())
}

pub fn everyone() -> ToolGrant {
    ToolGrant { everyone: true, ..ToolGrant::default() }
}

pub fn name(id: &str) -> TurnName {
    TurnName::parse(&format!("acme:{id}")).unwrap()
}

pub fn turn(now_ms: i64, calls: usize, suspect: Option<Suspect>) -> Turn {
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
        local_calls: false,
        context: tickfleet_model::Context::default(),
        task: None,
        delegated_by: None,
        span: None,
    };
    let state = State::Ready { upto: calls };
    let turn = Turn::new(head, Destination::Workers(Priority::Normal), state, now_ms);
    Turn { place: 1, bytes: 100, debited: calls, crashes: u32::from(suspect.is_some()), suspect, ..turn }
}
