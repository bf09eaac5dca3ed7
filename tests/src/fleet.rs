//! A whole fleet in one process: a private Redis, schedulers, workers, a producer and its inbox.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use shared::config::{TaskHandlerDef, ToolsFile};
use shared::force::{Force, InForce};
use shared::model::policy::{DefaultCaps, Permissions, TenantPolicy, ToolGrant};
use shared::model::retry::Ladder;
use shared::model::{AgentId, AgentPolicy, Policy, TenantId};
use shared::ops::metrics::Metrics;
use shared::ops::progress::Progress;
use shared::ops::shutdown::Shutdown;
use shared::report::ReportOptions;
use shared::store::{Store, StoreOptions};
use shared::testkit::RedisServer;
use tokio::task::JoinHandle;
use worker::tools::http::Environment;
use worker::tools::{Registry, TypedTool};

/// What a fleet is made of.
pub struct Plan {
    /// Schedulers side by side.
    pub schedulers: usize,
    /// Workers side by side.
    pub workers: usize,
    /// Slots of each worker.
    pub slots: usize,
    /// Agents of tenant `acme`.
    pub agents: Vec<String>,
    /// Caps.
    pub caps: DefaultCaps,
    /// Waits between tries.
    pub ladder: Ladder,
    /// Times and bounds.
    pub store: StoreOptions,
    /// Tools beside the standard ones; every agent may call everything.
    pub tools: Vec<TypedTool>,
    /// Declared tools.
    pub declared: ToolsFile,
    /// Task handlers by agent.
    pub handlers: BTreeMap<AgentId, TaskHandlerDef>,
    /// Tools that nobody may call.
    pub disabled: Vec<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            schedulers: 1,
            workers: 1,
            slots: 16,
            agents: vec!["kelly".into()],
            caps: DefaultCaps { tick_ms: 1_000, ..DefaultCaps::default() },
            ladder: Ladder::new([10, 20, 30].map(Duration::from_millis).into()),
            store: StoreOptions { lease_ms: 2_000, ..StoreOptions::default() },
            tools: Vec::new(),
            declared: ToolsFile::default(),
            handlers: BTreeMap::new(),
            disabled: Vec::new(),
        }
    }
}

/// A running fleet.
pub struct Fleet {
    /// Its Redis.
    pub server: RedisServer,
    /// Its one shard.
    pub store: Store,
    /// What is in force.
    pub force: Arc<InForce>,
    /// Metrics of all its parts.
    pub metrics: Arc<Metrics>,
    plan: Arc<Plan>,
    shutdown: Shutdown,
    parts: Vec<JoinHandle<()>>,
    last_reply: String,
}

impl Fleet {
    /// Starts a fleet on a Redis of its own.
    pub async fn start(plan: Plan) -> Self {
        Self::start_on(RedisServer::start().await, plan).await
    }

    /// Starts a fleet on this Redis.
    pub async fn start_on(server: RedisServer, plan: Plan) -> Self {
        let store = Store::open(&server.url(), 0, Arc::new(plan.store.clone())).unwrap();
        store.ensure_groups().await.unwrap();
        let names = plan.tools.iter().map(|t| t.spec().name.clone());
        let standard = ["echo", "sleep", "fail", "fail_once", "delegate_task"].map(String::from);
        let every = ToolGrant { everyone: true, ..ToolGrant::default() };
        let all = names.chain(standard).chain(plan.declared.tools.keys().cloned());
        let policy = Policy {
            agents: plan.agents.iter().map(|a| (AgentId::new(a).unwrap(), AgentPolicy::default())).collect(),
            tenants: [(TenantId::new("acme").unwrap(), TenantPolicy::default())].into(),
            permissions: Permissions {
                matrix: all.map(|name| (name, every.clone())).collect(),
                disabled_tools: plan.disabled.iter().cloned().collect(),
                strict_capabilities: true,
            },
            defaults: plan.caps.clone(),
        };
        let force = Force { policy, task_handlers: plan.handlers.clone(), digest: "test".into() };
        let mut fleet = Self {
            store,
            server,
            force: Arc::new(InForce::new(force)),
            metrics: Arc::new(Metrics::new().unwrap()),
            plan: Arc::new(plan),
            shutdown: Shutdown::default(),
            parts: Vec::new(),
            last_reply: "0".into(),
        };
        for index in 0..fleet.plan.schedulers {
            fleet.add_scheduler(index);
        }
        for index in 0..fleet.plan.workers {
            fleet.add_worker(index);
        }
        fleet
    }

    /// A store with a connection of its own.
    fn own_store(&self) -> Store {
        Store::open(&self.server.url(), 0, Arc::new(self.plan.store.clone())).unwrap()
    }

    fn add_scheduler(&mut self, index: usize) {
        let options = scheduler::Options {
            batch: 256,
            tick_poll: Duration::from_millis(10),
            reap_every: Duration::from_millis(200),
            collect_every: Duration::from_secs(1),
            audit_bytes_max: 1 << 28,
            dead_retain_ms: 86_400_000,
        };
        let scheduler = scheduler::Scheduler::new(
            self.own_store(),
            self.force.clone(),
            self.metrics.clone(),
            Progress::default(),
            options,
            ReportOptions::default(),
            &format!("s{index}"),
        );
        let stop = self.shutdown.draining.clone();
        self.parts.push(tokio::spawn(async move { scheduler.run(stop).await.unwrap() }));
    }

    fn add_worker(&mut self, index: usize) {
        let store = self.own_store();
        let mut typed = worker::standard_tools(&store, &self.force);
        typed.extend(self.plan.tools.iter().cloned());
        let environment = Environment::of([]);
        let timeout = Duration::from_secs(30);
        let registry = Registry::build(typed, &self.plan.declared, &environment, timeout).unwrap();
        let handlers = worker::agents::bind(&self.plan.handlers, worker::standard_handlers(), &environment, timeout).unwrap();
        let surroundings = worker::Surroundings {
            force: self.force.clone(),
            metrics: self.metrics.clone(),
            progress: Progress::default(),
            registry: Arc::new(registry),
            task_handlers: handlers,
        };
        let options = worker::Options {
            slots: self.plan.slots,
            drain: Duration::from_secs(5),
            ladder: self.plan.ladder.clone(),
            report: ReportOptions::default(),
            name: format!("w{index}"),
        };
        let worker = worker::Worker::new(store, surroundings, options, self.shutdown.now.child_token());
        let shutdown = self.shutdown.clone();
        self.parts.push(tokio::spawn(async move { worker.run(shutdown).await.unwrap() }));
    }

    /// What any language does: one XADD of a JSON message. Answers the entry's id.
    pub async fn xadd(&self, stream: &str, field: &str, message: &[u8]) -> String {
        let command = redis::cmd("XADD").arg(self.store.keys().key(stream)).arg("*").arg(field).arg(message).to_owned();
        self.store.connection().query("xadd", &command).await.unwrap()
    }

    /// Submits a turn of `kelly` with these calls (name, arguments) and answers its id.
    pub async fn submit(&self, calls: &[(&str, Value)]) -> String {
        let calls: Vec<Value> =
            calls.iter().enumerate().map(|(i, (name, args))| json!({"id": format!("c{i}"), "name": name, "arguments": args})).collect();
        self.submit_turn(json!({"calls": calls})).await
    }

    /// Submits a turn; tenant, agent and reply inbox are added where they are missing.
    pub async fn submit_turn(&self, mut turn: Value) -> String {
        let object = turn.as_object_mut().unwrap();
        for (field, value) in [("tenant", "acme"), ("agent", "kelly"), ("reply_to", "box")] {
            object.entry(field).or_insert_with(|| value.into());
        }
        let entry = self.xadd("turns", "turn", turn.to_string().as_bytes()).await;
        turn["turn_id"].as_str().map_or_else(|| format!("t{entry}"), str::to_owned)
    }

    /// The next reply of inbox `box`, waited for up to 20 s.
    pub async fn reply(&mut self) -> Value {
        self.try_reply(Duration::from_secs(20)).await.expect("a reply within 20 s")
    }

    /// The next reply of inbox `box`, or none within `wait`.
    pub async fn try_reply(&mut self, wait: Duration) -> Option<Value> {
        let mut connection = self.server.connection().await;
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(1).arg("BLOCK").arg(u64::try_from(wait.as_millis()).unwrap().max(1));
        command.arg("STREAMS").arg(self.store.keys().key("replies:acme:box")).arg(&self.last_reply);
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        let found: Option<Vec<(String, Entries)>> = command.query_async(&mut connection).await.unwrap();
        let (id, fields) = found?.remove(0).1.remove(0);
        self.last_reply = id;
        Some(serde_json::from_str(&fields["reply"]).unwrap())
    }

    /// Drains everything, and looks that the house is empty.
    pub async fn stop(mut self) {
        self.shutdown.drain();
        for part in self.parts.drain(..) {
            part.await.unwrap();
        }
        let mut connection = self.server.connection().await;
        shared::testkit::assert_no_leaked_keys(&mut connection, LASTING).await;
    }
}

/// Keys that may last without a TTL, each with its reason.
pub const LASTING: &[(&str, &str)] = &[
    ("{tickfleet:0}:meta", "the shard's clock, policy and epoch"),
    ("{tickfleet:0}:turns", "the inbound stream; trimmed with every batch"),
    ("{tickfleet:0}:tasks", "the inbound stream; trimmed with every batch"),
    ("{tickfleet:0}:ready:*", "the ready streams; trimmed with every batch"),
    ("{tickfleet:0}:external:*", "one stream per agent with an external runtime"),
    ("{tickfleet:0}:externals", "the names of those streams"),
    ("{tickfleet:0}:audit", "bounded by age, entries and bytes"),
    ("{tickfleet:0}:dead", "bounded by age and entries"),
    ("{tickfleet:0}:budgets", "one field per agent that was active; pruned a day after"),
    ("{tickfleet:0}:beats", "one field per living consumer"),
    ("{tickfleet:0}:suspects", "one field per living scheduler at most"),
    ("{tickfleet:0}:inboxes", "one member per inbox in use"),
    ("{tickfleet:0}:tenant:*", "one per configured tenant"),
    ("{tickfleet:0}:tenants", "tenants that were set at run time"),
];
