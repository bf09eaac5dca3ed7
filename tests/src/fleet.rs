//! A whole fleet in one process: a private Redis, schedulers, workers, a producer and its inbox.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_config::{McpFile, ModelDef, Part, Sources, TaskHandlerDef, ToolsFile, WorkerSettings, known_tools};
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_llm::{LlmKind, ModelSet};
use tickfleet_model::policy::{DefaultCaps, Permissions, TenantPolicy, ToolGrant};
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::retry::breaker::BreakerSettings;
use tickfleet_model::{AgentId, AgentPolicy, Durability, Policy, Priorities, TenantId, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::{Store, StoreOptions};
use tickfleet_testkit::RedisServer;
use tickfleet_tools::{Environment, NoShell, RegisteredTool, Registry, ToolKinds, TypedTool};
use tickfleet_tools_http::HttpKind;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::inbox::Inbox;
use fleet_redis::{FleetRedis, OtherServers};
pub use lasting::LASTING;

pub mod fleet_redis;
mod lasting;
pub mod users;

/// On an idle machine, tests wait one or two seconds. The limit is for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Plan {
    pub schedulers: usize,
    pub workers: usize,
    pub slots: usize,
    pub priorities: Priorities,
    pub agents: Vec<String>,
    pub caps: DefaultCaps,
    pub retry_delays: RetryDelays,
    /// A `once` call runs only after its intent record is this durable.
    pub durable: Durability,
    pub output_bytes_max: usize,
    pub loops: Option<worker::LoopOptions>,
    pub breaker: Option<BreakerSettings>,
    pub store: StoreOptions,
    pub standard_tools: bool,
    pub atlas_tools: bool,
    /// Every agent may call these tools.
    pub tools: Vec<TypedTool>,
    pub registered: Vec<RegisteredTool>,
    pub declared: ToolsFile,
    pub handlers: BTreeMap<AgentId, TaskHandlerDef>,
    pub models: BTreeMap<String, ModelDef>,
    pub task_tools: Vec<TypedTool>,
    pub disabled: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub drain: Duration,
    /// Applied after all other settings.
    pub policy: fn(&mut Policy),
    /// If set, `policy` and `handlers` have no effect.
    pub active: Option<ActivePolicy>,
    pub users: bool,
    /// If set, all workers share this semaphore, as in one process. Otherwise, each worker has its own semaphore.
    pub suspects: Option<SuspectSemaphore>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            schedulers: 1,
            workers: 1,
            slots: 16,
            priorities: Priorities::default(),
            agents: vec!["kelly".into()],
            caps: DefaultCaps { tick_ms: 1_000, ..DefaultCaps::default() },
            retry_delays: RetryDelays::new([10, 20, 30].map(Duration::from_millis).into()),
            durable: Durability::None,
            output_bytes_max: limits::OUTPUT_BYTES_MAX,
            loops: None,
            breaker: None,
            store: StoreOptions { lease_ms: 2_000, ..StoreOptions::default() },
            standard_tools: true,
            atlas_tools: false,
            tools: Vec::new(),
            registered: Vec::new(),
            declared: ToolsFile::default(),
            handlers: BTreeMap::new(),
            models: BTreeMap::new(),
            task_tools: Vec::new(),
            disabled: Vec::new(),
            environment: Vec::new(),
            drain: Duration::from_secs(5),
            policy: |_| {},
            active: None,
            users: users::are_wanted(),
            suspects: None,
        }
    }
}

impl Plan {
    pub fn active(&self) -> Arc<PolicyHandle> {
        if let Some(active) = &self.active {
            return Arc::new(PolicyHandle::new(active.clone()));
        }
        let standard = ["echo", "sleep", "fail", "fail_once", "delegate_task"].map(String::from);
        let typed = self.tools.iter().map(|t| t.spec().name.clone());
        let registered = self.registered.iter().map(|t| t.spec.name.clone());
        let every = ToolGrant { everyone: true, ..ToolGrant::default() };
        let all = typed.chain(registered).chain(standard).chain(self.declared.tools.keys().cloned());
        let mut policy = Policy {
            agents: Arc::new(self.agents.iter().map(|a| (AgentId::new(a).unwrap(), AgentPolicy::default())).collect()),
            tenants: [(TenantId::new("acme").unwrap(), TenantPolicy::default())].into(),
            withheld: BTreeSet::new(),
            permissions: Permissions {
                matrix: all.map(|name| (name, every.clone())).collect(),
                disabled_tools: self.disabled.iter().cloned().collect(),
                switched_off: BTreeSet::new(),
                strict_capabilities: true,
                approvers: BTreeMap::new(),
            },
            defaults: self.caps.clone(),
            ..Policy::default()
        };
        (self.policy)(&mut policy);
        policy.known_tools = Arc::new(known_tools(&self.declared, &McpFile::default(), &policy.permissions));
        Arc::new(PolicyHandle::new(ActivePolicy {
            policy,
            task_handlers: self.handlers.clone(),
            digest: "test".into(),
            ..ActivePolicy::default()
        }))
    }

    pub fn store(&self, url: &str) -> Store {
        Store::open(url, 0, Arc::new(self.store.clone())).unwrap()
    }

    pub fn scheduler(
        &self,
        store: Store,
        active: Arc<PolicyHandle>,
        metrics: Arc<Metrics>,
        name: &str,
    ) -> scheduler::Scheduler {
        let options = scheduler::Options {
            batch: 256,
            tick_poll: Duration::from_millis(10),
            reap_every: Duration::from_millis(200),
            collect_every: Duration::from_secs(1),
            audit_bytes_max: 1 << 28,
            dead_retain_ms: 86_400_000,
            seal: None,
        };
        let progress = Progress::default();
        let suspects = self.suspects.clone().unwrap_or_default();
        let process = scheduler::Process { active, metrics, progress, suspects };
        scheduler::Scheduler::new(store, process, &options, ReportOptions::default(), name)
    }

    pub fn worker(
        &self,
        store: Store,
        active: Arc<PolicyHandle>,
        metrics: Arc<Metrics>,
        name: &str,
        now: CancellationToken,
    ) -> Arc<worker::Worker> {
        let mut typed = if self.standard_tools { worker::standard_tools(&store, &active) } else { Vec::new() };
        typed.extend(self.tools.iter().cloned());
        let variables = self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let environment = Environment::of(variables);
        if self.atlas_tools {
            typed.extend(tickfleet_tools_atlas::all(&store, &store, &active, &environment).unwrap());
        }
        let timeout = Duration::from_secs(30);
        let mut registry = Registry::build(typed, &self.declared, &kinds(&environment), &environment, timeout).unwrap();
        for tool in &self.registered {
            registry.register(tool.clone()).unwrap();
        }
        let mut task_tools = worker::standard_handlers();
        task_tools.extend(self.task_tools.iter().cloned());
        let variables = self.environment.iter().cloned().collect();
        let models = Arc::new(ModelSet::new(&self.models, &variables));
        let llm = LlmKind::new(store.clone(), models, Arc::clone(&active), Arc::clone(&metrics));
        let defs = &active.load().task_handlers;
        let kinds = kinds(&environment);
        let handlers = worker::agents::bind(defs, task_tools, &kinds, &llm, &environment, timeout).unwrap();
        let process = worker::ProcessParts {
            suspects: self.suspects.clone().unwrap_or_default(),
            breakers: worker::Breakers::new(self.breaker),
            active,
            metrics,
            progress: Progress::default(),
            registry: Arc::new(registry),
            task_handlers: handlers,
        };
        let built_in = Sources { part: Part::Settings, ..Sources::default() };
        let options = worker::WorkerOptions {
            settings: WorkerSettings {
                slots: self.slots,
                priorities: self.priorities.clone(),
                drain: self.drain,
                retry_delays: self.retry_delays.clone(),
                durable: self.durable,
                durable_wait: Duration::from_millis(500),
                output_bytes_max: self.output_bytes_max as u64,
                ..tickfleet_config::load(&built_in).unwrap().settings.worker
            },
            loops: self.loops.clone(),
            report: ReportOptions::default(),
            name: name.to_owned(),
        };
        worker::Worker::new(store, process, options, now)
    }
}

fn kinds(environment: &Environment) -> ToolKinds {
    ToolKinds { http: Box::new(HttpKind::new(environment.clone())), shell: Box::new(NoShell) }
}

struct FleetProcess {
    shutdown: Shutdown,
    running: JoinHandle<()>,
}

pub struct Fleet {
    pub server: RedisServer,
    pub store: Store,
    pub active: Arc<PolicyHandle>,
    pub metrics: Arc<Metrics>,
    /// For schedulers and workers. `None` if they use the URL of `server`.
    url: Option<String>,
    _around: OtherServers,
    plan: Arc<Plan>,
    schedulers: Vec<FleetProcess>,
    workers: Vec<FleetProcess>,
    last_reply: BTreeMap<String, String>,
}

impl Fleet {
    pub async fn start(plan: Plan) -> Self {
        let place = FleetRedis::wanted(&plan.store.namespace).await;
        Self::start_at(place, plan).await
    }

    pub async fn start_on(server: RedisServer, plan: Plan) -> Self {
        Self::start_at(FleetRedis::of(server), plan).await
    }

    async fn start_at(place: FleetRedis, plan: Plan) -> Self {
        tickfleet_outbound::install_crypto_provider();
        if plan.users {
            for server in [&place.server].into_iter().chain(&place.around.servers) {
                users::make(server, &plan.store.namespace).await;
            }
        }
        let store = plan.store(&place.url());
        store.ensure_groups().await.unwrap();
        let FleetRedis { server, url, around } = place;
        let mut fleet = Self {
            store,
            server,
            url,
            _around: around,
            active: plan.active(),
            metrics: Arc::new(Metrics::new().unwrap()),
            plan: Arc::new(plan),
            schedulers: Vec::new(),
            workers: Vec::new(),
            last_reply: BTreeMap::new(),
        };
        for _ in 0..fleet.plan.schedulers {
            fleet.add_scheduler();
        }
        for _ in 0..fleet.plan.workers {
            fleet.add_worker();
        }
        fleet
    }

    pub fn url_of(&self, role: &str) -> String {
        let url = self.url.clone().unwrap_or_else(|| self.server.url());
        if self.plan.users { users::url_in(&url, role) } else { url }
    }

    pub fn add_scheduler(&mut self) {
        self.add_scheduler_with(self.active.clone());
    }

    pub fn add_scheduler_with(&mut self, active: Arc<PolicyHandle>) {
        let store = self.plan.store(&self.url_of("scheduler"));
        let name = format!("s{}", self.schedulers.len());
        let scheduler = self.plan.scheduler(store, active, self.metrics.clone(), &name);
        let shutdown = Shutdown::default();
        let stop = shutdown.draining.clone();
        let running = tokio::spawn(async move { scheduler.run(stop).await.unwrap() });
        self.schedulers.push(FleetProcess { shutdown, running });
    }

    pub fn add_worker(&mut self) {
        let store = self.plan.store(&self.url_of("worker"));
        let shutdown = Shutdown::default();
        let name = format!("w{}", self.workers.len());
        let now = shutdown.now.child_token();
        let worker = self.plan.worker(store, self.active.clone(), self.metrics.clone(), &name, now);
        let until = shutdown.clone();
        let running = tokio::spawn(async move { worker.run(until).await.unwrap() });
        self.workers.push(FleetProcess { shutdown, running });
    }

    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.schedulers.iter().chain(&self.workers).all(|part| !part.running.is_finished())
    }

    pub async fn drain_worker(&mut self) {
        let part = self.workers.remove(0);
        part.shutdown.drain();
        part.running.await.unwrap();
    }

    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub async fn xadd(&self, stream: &str, field: &str, message: &[u8]) -> String {
        let command = redis::cmd("XADD").arg(self.store.keys().key(stream)).arg("*").arg(field).arg(message).to_owned();
        command.query_async(&mut self.server.connection().await).await.unwrap()
    }

    pub async fn leased(&self) {
        let mut connection = self.server.connection().await;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let command = redis::cmd("XPENDING").arg(self.store.keys().key("ready:normal")).arg("workers").to_owned();
            let held: (u64, redis::Value, redis::Value, redis::Value) =
                command.query_async(&mut connection).await.unwrap();
            if held.0 > 0 {
                return;
            }
            // Redis does not announce that an entry was read, so this polls.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no worker leased the slice within {PATIENCE:?}");
    }

    /// Reads the slice under the name of the only worker, as if the response to the worker were lost.
    pub async fn read_astray(&self) {
        let mut connection = self.server.connection().await;
        let ready = self.store.keys().key("ready:normal");
        let info = redis::cmd("XINFO").arg("CONSUMERS").arg(&ready).arg("workers").to_owned();
        let consumers: Vec<BTreeMap<String, redis::Value>> = info.query_async(&mut connection).await.unwrap();
        let name: String = redis::from_redis_value(consumers[0]["name"].clone()).unwrap();
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg("workers")
            .arg(name)
            .arg("BLOCK")
            .arg(u64::try_from(PATIENCE.as_millis()).unwrap())
            .arg("STREAMS")
            .arg(ready)
            .arg(">");
        let found: redis::Value = read.query_async(&mut connection).await.unwrap();
        assert_ne!(found, redis::Value::Nil, "no slice within {PATIENCE:?}");
    }

    pub async fn submit(&self, calls: &[(&str, Value)]) -> String {
        let calls: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(|(i, (name, args))| json!({"id": format!("c{i}"), "name": name, "arguments": args}))
            .collect();
        self.submit_turn(json!({"calls": calls})).await
    }

    /// Adds tenant, agent and inbox if they are missing. Returns the turn's ID.
    pub async fn submit_turn(&self, mut turn: Value) -> String {
        let object = turn.as_object_mut().unwrap();
        for (field, value) in [("tenant", "acme"), ("agent", "kelly"), ("reply_to", "box")] {
            object.entry(field).or_insert_with(|| value.into());
        }
        let entry = self.xadd("turns", "turn", turn.to_string().as_bytes()).await;
        turn["turn_id"].as_str().map_or_else(|| format!("t{entry}"), str::to_owned)
    }

    /// Reads inbox `acme:box`. Panics if no reply arrives within [`PATIENCE`].
    pub async fn reply(&mut self) -> Value {
        if let Some(reply) = self.try_reply(PATIENCE).await {
            return reply;
        }
        panic!("no reply within {PATIENCE:?}; Redis holds:\n{}", self.everything().await);
    }

    /// Reads inbox `acme:box`. `None` if no reply arrives within `wait`.
    pub async fn try_reply(&mut self, wait: Duration) -> Option<Value> {
        self.reply_in("acme:box", wait).await
    }

    /// `inbox` is `<tenant>:<inbox>`. `None` if no reply arrives within `wait`.
    pub async fn reply_in(&mut self, inbox: &str, wait: Duration) -> Option<Value> {
        let reply = self.raw_reply_in(inbox, wait).await?;
        Some(serde_json::from_str(&reply).unwrap())
    }

    /// Returns text, because a `Value` cannot hold numbers beyond 64 bits.
    pub async fn raw_reply_in(&mut self, inbox: &str, wait: Duration) -> Option<String> {
        let mut connection = self.server.connection().await;
        let last = self.last_reply.entry(inbox.to_owned()).or_insert_with(|| "0".into());
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(1).arg("BLOCK").arg(u64::try_from(wait.as_millis()).unwrap().max(1));
        command.arg("STREAMS").arg(self.store.keys().key(format!("replies:{inbox}"))).arg(&*last);
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        let found: Option<Vec<(String, Entries)>> = command.query_async(&mut connection).await.unwrap();
        let (id, mut fields) = found?.remove(0).1.remove(0);
        *last = id;
        fields.remove("reply")
    }

    /// Opens an inbox of tenant `acme`.
    pub async fn inbox(&self, name: &str) -> Inbox {
        Inbox::open(&self.server, self.store.keys(), name).await
    }

    pub async fn stop(mut self) {
        if !self.schedulers.is_empty() {
            self.until("cascades of ended turns have run", async |fleet| {
                let timers: Vec<String> = fleet.ask("ZRANGE", "timers", &["0", "-1"]).await;
                !timers.iter().any(|timer| timer.starts_with("cascade:"))
            })
            .await;
        }
        let parts: Vec<FleetProcess> = self.workers.drain(..).chain(self.schedulers.drain(..)).collect();
        for part in &parts {
            part.shutdown.drain();
        }
        for part in parts {
            part.running.await.unwrap();
        }
        self.forget_timers_of_empty_queues().await;
        let mut connection = self.server.connection().await;
        tickfleet_testkit::assert_no_leaked_keys(&mut connection, LASTING).await;
        if self.plan.users {
            users::assert_nobody_was_refused(&mut connection).await;
        }
    }
}

impl Fleet {
    /// A canceled or expired turn leaves the timer of its queue behind. This removes such timers before they are due.
    async fn forget_timers_of_empty_queues(&self) {
        let timers: Vec<String> = self.ask("ZRANGE", "timers", &["0", "-1"]).await;
        for timer in timers.iter().filter(|timer| timer.starts_with("throttle:")) {
            if self.ask::<u64>("EXISTS", timer, &[]).await == 0 {
                let _: u64 = self.ask("ZREM", "timers", &[timer]).await;
            }
        }
    }
}
