//! A fleet in one thread: a producer, schedulers and workers with minimal loops.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use tickfleet_core::bounds::Bounds;
use tickfleet_core::call::EndUnreported;
use tickfleet_core::call::facts::{Session, SessionName};
use tickfleet_core::keys::{self, TurnName, limits};
use tickfleet_core::recovery::Lease;
use tickfleet_core::recovery::inbound::{ReapInbound, TakenInbound};
use tickfleet_core::recovery::journal::Journal;
use tickfleet_core::recovery::reap::{HeldEntry, Reap, ReapResult};
use tickfleet_core::task::cancel::Cancel;
use tickfleet_core::task::cascade::{Cascade, CascadeStep};
use tickfleet_core::turn::admit::{Admit, AdmitResult};
use tickfleet_core::turn::end::{EndedCall, ExecutionState, Render, RenderedCall, ReplyFrame};
use tickfleet_core::turn::limit::{Debit, Generations, LimitDecision, Policy, ResolvedCaps, ResolvedLimit, WindowKind};
use tickfleet_core::turn::release::{QueueHead, Rearm, Release};
use tickfleet_core::turn::slice::Delivery;
use tickfleet_core::turn::state::{EndReason, Finished};
use tickfleet_core::turn::submit::{Inbound, Submit, Submitted};
use tickfleet_core::turn::{Due, Head};
use tickfleet_core::workers::{
    self, Heartbeat, ListHolder, ReapPermit, RemoveDeadConsumer, RequestReapPermit, Role, Slots,
};
use tickfleet_core::{CounterKey, Decision, EntryId, Query, Record, SetKey, StreamKey, Value};
use tickfleet_model::day::Tz;
use tickfleet_model::limit::{LimitMode, OnReach};
use tickfleet_model::{AgentId, Call, Caps, ConsumerId, DayCapAction, InboxName, Priority, TenantId, TurnId};
use tickfleet_store::StoreError;
use tickfleet_store::seam::memory::faults::{Faults, FaultyStore};
use tickfleet_store::seam::memory::{ManualClock, MemoryOptions};
use tickfleet_store::seam::{RunError, ShardState, Store, TakeRequest, TakenEntry, Versions, run};

use crate::executor::{Chances, Executor, VirtualClock, yield_now};
use crate::oracle::{Oracle, SharedOracle};
use crate::watched::Watched;

pub const LEASE_MS: i64 = 800;
pub const TICK_MS: i64 = 500;
pub const CALLS_PER_TICK: u32 = 3;
/// Within `PAYMENTS_MS`.
pub const PAYMENTS_MAX: u64 = 4;
pub const PAYMENTS_MS: i64 = 2_000;
/// A restart loses at most the writes of the last `LOST_MS_MAX` milliseconds.
pub const LOST_MS_MAX: i64 = 600;
/// How long workers' journals keep confirmed entries.
const KEPT_MS: i64 = 4_000;
const STEP_MS_MAX: i64 = 3_000;
/// After this many polls without faults, a game with unfinished turns fails. This many polls take longer than a
/// deadline.
const POLLS_MAX: u64 = 150_000;
pub const DEADLINE_MS: i64 = 60_000;
const BEGIN_MS: i64 = 1_000_000_000;
const AGENTS: [&str; 3] = ["kelly", "robin", "sam"];
const TOOLS: [&str; 3] = ["look", "note", "pay"];

/// Chances of events are per 10,000 polls, chances of store faults per 1,000 calls.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub turns: usize,
    pub workers: usize,
    pub schedulers: usize,
    pub crash: u32,
    pub pause: u32,
    pub cancel: u32,
    /// Turns that are canceled after their submission, per 1,000 polls of the producer.
    pub cancel_later: u32,
    pub refused: u64,
    pub unanswered: u64,
    pub lose: u32,
    /// Chance that time passes. Each time, at most 10 ms pass.
    pub advance: u32,
    pub step: u32,
    pub short: u32,
    pub governed: bool,
}

impl Plan {
    pub fn calm() -> Self {
        Self {
            turns: 12,
            workers: 3,
            schedulers: 2,
            crash: 0,
            pause: 0,
            cancel: 10,
            cancel_later: 5,
            refused: 0,
            unanswered: 0,
            lose: 0,
            advance: 2_000,
            step: 0,
            short: 0,
            governed: false,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Message {
    agent: String,
    tools: Vec<String>,
}

struct Rulebook {
    caps: ResolvedCaps,
    permits: Arc<ResolvedLimit>,
    payments: Arc<ResolvedLimit>,
}

impl Rulebook {
    fn new() -> Self {
        let caps = Caps {
            tick_ms: TICK_MS,
            calls_per_tick: CALLS_PER_TICK,
            calls_per_day: 1_000,
            tenant_calls_per_day: None,
            on_day_cap: DayCapAction::Reject,
        };
        let resolved = |name: &str, max, window| {
            let on_reach = OnReach::Wait;
            let mode = LimitMode::Enforce;
            Arc::new(ResolvedLimit { name: name.into(), max, window, on_reach, mode, counters_max: 100 })
        };
        Self {
            caps: ResolvedCaps::new(&caps, Tz::UTC),
            permits: resolved("looks", 2, WindowKind::Concurrency),
            payments: resolved("payments", PAYMENTS_MAX, WindowKind::Rolling { length_ms: PAYMENTS_MS }),
        }
    }
}

impl Policy for Rulebook {
    fn rules(&self, name: &TurnName, head: &Head, calls: &[Call]) -> LimitDecision {
        let mut debits = self.caps.debits(&name.tenant, &head.agent, 7, calls.len());
        for (resolved, tool) in [(&self.permits, "look"), (&self.payments, "pay")] {
            let mut seen = false;
            let amounts: Vec<Option<u64>> = calls
                .iter()
                .map(|call| {
                    let counts = call.tool == tool && !(resolved.window == WindowKind::Concurrency && seen);
                    seen |= counts;
                    Some(u64::from(counts))
                })
                .collect();
            if amounts.iter().any(|amount| *amount != Some(0)) {
                let counter = CounterKey::new(&resolved.name, "all");
                debits.push(Debit { limit: Arc::clone(resolved), counter, stagger_ms: 0, amounts });
            }
        }
        LimitDecision::Debits(debits)
    }

    fn generations(&self) -> Generations {
        Generations::default()
    }
}

pub struct TestRenderer;

impl Render for TestRenderer {
    fn ended(&self, call: &EndedCall<'_>) -> RenderedCall {
        let execution = match call.execution {
            ExecutionState::NotRun => "not_run",
            ExecutionState::Tried(_) => "tried",
            ExecutionState::Begun | ExecutionState::MayHaveRun | ExecutionState::TakenByRuntime => "may_have_run",
            ExecutionState::BeganChild => "elsewhere",
        };
        let is_late = matches!(call.reason, EndReason::Expired) && execution == "not_run";
        rendered(if is_late { "late" } else { execution }, true)
    }

    fn frame(&self, name: &TurnName, _: &Head) -> ReplyFrame {
        ReplyFrame { head: format!("{{\"turn_id\":\"{}\",\"results\":[", name.turn), messages: None, audits: false }
    }
}

pub fn rendered(word: &str, failed: bool) -> RenderedCall {
    let text: Bytes = format!("\"{word}\"").into();
    RenderedCall { result: text.clone(), message: Bytes::new(), audit: text, failed }
}

pub struct Shared {
    pub store: Watched<FaultyStore>,
    pub oracle: SharedOracle,
    pub clock: VirtualClock,
    pub bounds: Bounds,
    rules: Rulebook,
    turns: usize,
}

pub struct Process {
    pub shared: Arc<Shared>,
    pub versions: Versions,
    pub consumer: String,
    pub shard: ShardState,
    pub rng: StdRng,
    pub state: Arc<Mutex<ProcessState>>,
}

/// All slots of a worker share this state. Other processes have one slot.
pub struct ProcessState {
    pub heartbeat_ms: i64,
    pub journal: Journal<()>,
    pub beats: bool,
    pub running: HashSet<Delivery>,
    pub canceled: HashSet<Delivery>,
    /// The worker held these entries at the last check without running them.
    pub strays: BTreeSet<EntryId>,
    /// True if the process takes no more entries under its consumer name.
    pub ends: bool,
}

impl Default for ProcessState {
    fn default() -> Self {
        Self {
            heartbeat_ms: 0,
            journal: Journal::new(KEPT_MS, 1 << 20),
            beats: false,
            running: HashSet::new(),
            canceled: HashSet::new(),
            strays: BTreeSet::new(),
            ends: false,
        }
    }
}

/// The store failed, or the process lost its lease.
pub struct ProcessEnded;

impl From<StoreError> for ProcessEnded {
    fn from(_: StoreError) -> Self {
        Self
    }
}

impl Process {
    pub fn new(shared: &Arc<Shared>, kind: &str, index: usize, incarnation: u32, seed: u64) -> Self {
        let consumer = format!("{kind}-{index}-{incarnation:04x}-{index}");
        let rng =
            StdRng::seed_from_u64(seed ^ (u64::from(incarnation) << 32) ^ (index as u64) << 8 ^ kind.len() as u64);
        let versions = Versions::new(format!("{consumer}."));
        let shared = Arc::clone(shared);
        let shard = ShardState::default();
        Self { shared, versions, consumer, shard, rng, state: Arc::default() }
    }

    async fn decide_all<D: Decision>(&mut self, decisions: &[D]) -> Result<Vec<Option<D::Output>>, ProcessEnded> {
        let (shard, receipts) = run(&self.shared.store, &self.versions, self.shard, decisions).await?;
        self.shard = shard;
        let mut outputs = Vec::new();
        for receipt in receipts {
            outputs.push(match receipt {
                Ok(receipt) => Some(receipt.result),
                Err(RunError::Contended(_)) => None,
                Err(error) => {
                    self.shared.oracle.lock().unwrap().violate(format!("{}: {error}", self.consumer));
                    None
                }
            });
        }
        Ok(outputs)
    }

    pub async fn decide<D: Decision>(&mut self, decision: D) -> Result<Option<D::Output>, ProcessEnded> {
        Ok(self.decide_all(&[decision]).await?.pop().flatten())
    }

    pub async fn read(&self, query: Query) -> Result<Value, ProcessEnded> {
        Ok(self.shared.store.read(&[query]).await?.remove(0))
    }

    pub fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap()
    }

    /// At most one slot of a process sends a heartbeat at once.
    pub async fn heartbeat(&mut self, is_worker: bool) -> Result<(), ProcessEnded> {
        let sent_ms = self.shared.clock.now_ms();
        {
            let mut state = self.state();
            if state.beats || state.heartbeat_ms > 0 && sent_ms < state.heartbeat_ms + LEASE_MS / 4 {
                return Ok(());
            }
            state.beats = true;
        }
        let beaten = self.send_heartbeat(is_worker).await;
        let mut state = self.state();
        state.beats = false;
        // After a restart of the store, the lease counts only once the worker has reported its journal.
        if beaten.is_ok() {
            state.heartbeat_ms = sent_ms;
        }
        beaten
    }

    async fn send_heartbeat(&mut self, is_worker: bool) -> Result<(), ProcessEnded> {
        let role = if is_worker {
            Role::Worker { worker: self.consumer.clone(), slots: Slots { busy: 0, all: 2 } }
        } else {
            Role::Scheduler
        };
        let consumer = ConsumerId::new(&self.consumer).unwrap();
        let heartbeat = Heartbeat { consumer, role, lease_ms: LEASE_MS, policy: "p".to_owned() };
        let report = self.decide(heartbeat).await?.ok_or(ProcessEnded)?;
        {
            let mut state = self.state();
            let canceled: Vec<Delivery> =
                state.running.iter().filter(|one| report.canceled.contains(&one.name)).cloned().collect();
            state.canceled.extend(canceled);
        }
        if is_worker { self.report().await } else { Ok(()) }
    }

    pub fn is_leased(&self) -> bool {
        self.shared.clock.now_ms() < self.state().heartbeat_ms + LEASE_MS / 2
    }
}

// ---- producer

async fn produce(shared: Arc<Shared>, incarnation: u32, seed: u64, plan: Plan) {
    let mut process = Process::new(&shared, "p", 0, incarnation, seed);
    while process.produce(seed, plan).await.is_ok() {}
}

/// The content does not depend on crashes of the producer.
fn message_of(seed: u64, number: usize, governed: bool) -> Message {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed ^ number as u64);
    let calls = rng.random_range(1..=4);
    let mut tool = || {
        let tools = if governed && rng.random_range(0..4) > 0 { &crate::governed::TOOLS[..] } else { &TOOLS[..] };
        tools[rng.random_range(0..tools.len())].to_owned()
    };
    let tools = (0..calls).map(|_| tool()).collect();
    Message { agent: AGENTS[rng.random_range(0..AGENTS.len())].to_owned(), tools }
}

impl Process {
    /// After a restart of the store, also submits accepted turns again, because the store may have lost them.
    async fn produce(&mut self, seed: u64, plan: Plan) -> Result<(), ProcessEnded> {
        let all_accepted = self.shared.oracle.lock().unwrap().accepted.len() == plan.turns;
        let numbers = if all_accepted { 0..0 } else { 0..plan.turns };
        for number in numbers {
            let name = format!("t{number}");
            if self.shared.oracle.lock().unwrap().accepted.contains_key(&name) {
                continue;
            }
            let losses = self.shared.oracle.lock().unwrap().losses.len();
            let message = message_of(seed, number, plan.governed);
            let bounds = self.shared.bounds.clone();
            let submit = Submit {
                to: Inbound::Turns,
                tenant: TenantId::new("acme").unwrap(),
                given: Some((TurnId::new(&name).unwrap(), "d".to_owned())),
                reply_to: Some(InboxName::new("box").unwrap()),
                payload: serde_json::to_vec(&message).unwrap().into(),
                bounds: &bounds,
            };
            if let Some(Submitted::Accepted | Submitted::Duplicate) = self.decide(submit).await? {
                self.shared.oracle.lock().unwrap().accepted(name.clone(), message.tools.len(), losses);
            }
            if self.rng.random_range(0..100) < plan.cancel {
                let name = turn_name(&name);
                let cancel = Cancel { name, reason: "enough".to_owned(), above: None, bounds: &bounds };
                self.decide(cancel).await?;
            }
        }
        if all_accepted && self.rng.random_range(0..1_000) < plan.cancel_later {
            let name = turn_name(&format!("t{}", self.rng.random_range(0..plan.turns)));
            let bounds = self.shared.bounds.clone();
            self.decide(Cancel { name, reason: "enough".to_owned(), above: None, bounds: &bounds }).await?;
        }
        yield_now().await;
        Ok(())
    }
}

/// True if the tool must not run twice for one call.
pub fn is_once(tool: &str) -> bool {
    !["look", "note"].contains(&tool)
}

pub fn turn_name(turn: &str) -> TurnName {
    TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(turn).unwrap() }
}

// ---- scheduler

async fn schedule(shared: Arc<Shared>, index: usize, incarnation: u32, seed: u64) {
    let mut process = Process::new(&shared, "s", index, incarnation, seed);
    while process.schedule_once().await.is_ok() {}
}

impl Process {
    async fn schedule_once(&mut self) -> Result<(), ProcessEnded> {
        self.heartbeat(false).await?;
        self.intake().await?;
        // Request a permit here, too. A longer pause between two requests would count as an outage of the store.
        self.may_reap(LEASE_MS / 8).await?;
        self.timers().await?;
        if self.rng.random_range(0..8) == 0 {
            self.shared.store.sample_memory().await?;
        }
        self.reap().await
    }

    async fn intake(&mut self) -> Result<(), ProcessEnded> {
        let take =
            TakeRequest { consumer: self.consumer.as_str().into(), queues: vec![keys::turns()], count: 4, wait_ms: 0 };
        self.shard = self.shared.store.shard().await?;
        let epoch = self.shard.epoch;
        let mut taken = self.shared.store.take(&take).await?;
        if taken.is_empty() && self.rng.random_range(0..8) == 0 {
            // After a restart of the store, or after a lost reply, the scheduler may hold entries without knowing it.
            let held = self.held(&take.queues, &self.consumer).await?.into_iter().filter(|one| !one.fields.is_empty());
            taken = held.map(|HeldEntry { queue, entry, fields }| TakenEntry { queue, entry, fields }).collect();
        }
        let shared = Arc::clone(&self.shared);
        let mut admits = Vec::new();
        let mut messages = Vec::new();
        for entry in taken {
            let field =
                |name: &str| entry.fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| value.clone());
            let message: Message = serde_json::from_slice(&field("turn").unwrap()).unwrap();
            let given = String::from_utf8(field("given").or_else(|| field("i")).unwrap().to_vec()).unwrap();
            let calls: Vec<Call> = message
                .tools
                .iter()
                .map(|tool| Call { provider_id: None, tool: tool.clone(), arguments: "{}".to_owned() })
                .collect();
            messages.push((entry.entry, message.agent, TurnName::parse(&given).unwrap(), calls));
        }
        for (entry, agent, name, calls) in &messages {
            admits.push(Admit {
                entry: TakenInbound { id: entry.clone(), epoch },
                origin: entry.clone(),
                name: name.clone(),
                given: true,
                head: Head {
                    agent: AgentId::new(agent).unwrap(),
                    deadline_ms: self.shard.now_ms + DEADLINE_MS,
                    calls: calls.len(),
                    ..head()
                },
                priority: Priority::Normal,
                calls,
                policy: &shared.rules,
                render: &TestRenderer,
                bounds: &shared.bounds,
            });
        }
        for admitted in self.decide_all(&admits).await?.into_iter().flatten() {
            if let AdmitResult::Refused(code) = admitted {
                self.shared.oracle.lock().unwrap().violate(format!("refused: {code:?}"));
            }
        }
        Ok(())
    }

    async fn timers(&mut self) -> Result<(), ProcessEnded> {
        self.shard = self.shared.store.shard().await?;
        let upto = Some(self.shard.now_ms.unsigned_abs());
        let due = match self.read(Query::First { set: keys::timers(), upto, count: 8 }).await? {
            Value::Members(members) => members,
            _ => Vec::new(),
        };
        let shared = Arc::clone(&self.shared);
        for (timer, _) in due {
            let Some((kind, rest)) = timer.split_once(':') else { continue };
            match kind {
                "turn" => {
                    let name = TurnName::parse(rest).unwrap();
                    let due =
                        Due { name: &name, render: &TestRenderer, sections: &[&EndUnreported], bounds: &shared.bounds };
                    self.decide(due).await?;
                }
                "throttle" => {
                    let (limit, counter) = rest.split_once('@').unwrap();
                    self.release(CounterKey::new(limit, counter)).await?;
                }
                "cascade" => {
                    let name = TurnName::parse(rest).unwrap();
                    if let Some(Cascade::End { members, reason }) =
                        self.decide(CascadeStep { name: name.clone(), bounds: &shared.bounds }).await?
                    {
                        for member in members {
                            let reason = reason.clone();
                            let above = Some(name.clone());
                            self.decide(Cancel { name: member, reason, above, bounds: &shared.bounds }).await?;
                        }
                    }
                }
                other => panic!("a timer of {other}"),
            }
        }
        Ok(())
    }

    async fn release(&mut self, counter: CounterKey) -> Result<(), ProcessEnded> {
        let shared = Arc::clone(&self.shared);
        for _ in 0..4 {
            let Some(QueueHead::Turns(turns)) = self.decide(Rearm { counter: counter.clone() }).await? else { break };
            let releases: Vec<Release<'_>> = turns
                .into_iter()
                .map(|name| Release {
                    counter: counter.clone(),
                    name,
                    policy: &shared.rules,
                    render: &TestRenderer,
                    sections: &[&EndUnreported],
                    bounds: &shared.bounds,
                })
                .collect();
            let released = self.decide_all(&releases).await?;
            if !released.iter().flatten().any(|one| one.has_left_queue()) {
                break;
            }
        }
        Ok(())
    }

    async fn may_reap(&mut self, every_ms: i64) -> Result<bool, ProcessEnded> {
        Ok(self.decide(RequestReapPermit { lease_ms: LEASE_MS, every_ms }).await? == Some(ReapPermit::Granted))
    }

    async fn reap(&mut self) -> Result<(), ProcessEnded> {
        if !self.may_reap(20).await? {
            return Ok(());
        }
        let dead = match self.read(workers::dead(self.shard.now_ms, 4)).await? {
            Value::Members(members) => members,
            _ => Vec::new(),
        };
        if dead.is_empty() && self.rng.random_range(0..8) == 0 {
            self.list_holders().await?;
        }
        for (consumer, ends) in dead {
            self.reap_consumer(&consumer, i64::try_from(ends).unwrap()).await?;
            if !self.may_reap(0).await? {
                break;
            }
        }
        Ok(())
    }

    /// Lists consumers with entries again. Some consumers take entries after the reaper has removed them from the list.
    async fn list_holders(&mut self) -> Result<(), ProcessEnded> {
        for queue in [keys::turns(), keys::ready(Priority::Normal), keys::suspect(Priority::Normal)] {
            let consumers = self.shared.store.consumers(&queue).await?;
            for holder in consumers.into_iter().filter(|one| one.held > 0) {
                self.decide(ListHolder { consumer: ConsumerId::new(&holder.name).unwrap() }).await?;
            }
        }
        Ok(())
    }

    async fn reap_consumer(&mut self, consumer: &str, ends_ms: i64) -> Result<(), ProcessEnded> {
        let shared = Arc::clone(&self.shared);
        let heartbeat = workers::key(consumer);
        let version = match self.read(Query::Record(heartbeat.clone())).await? {
            Value::Record(Some(stored)) => Some(tickfleet_core::record::RecordText::parse(&stored).unwrap().version),
            _ => None,
        };
        let lease = || Lease { heartbeat: heartbeat.clone(), version: version.clone(), ends_ms };
        for entry in self.held(&[keys::turns()], consumer).await? {
            let reap = ReapInbound {
                consumer: consumer.into(),
                lease: lease(),
                entry,
                bounds: &shared.bounds,
                is_tenant: &|_| true,
            };
            self.decide(reap).await?;
        }
        let queues = [keys::ready(Priority::Normal), keys::suspect(Priority::Normal)];
        for _ in 0..64 {
            let held = self.held(&queues, consumer).await?;
            if held.is_empty() {
                self.decide(RemoveDeadConsumer { consumer: ConsumerId::new(consumer).unwrap() }).await?;
                return Ok(());
            }
            let reap = Reap { consumer: consumer.into(), lease: lease(), held, bounds: &shared.bounds };
            match self.decide(reap).await? {
                Some(
                    ReapResult::Redelivered(_)
                    | ReapResult::Removed { .. }
                    | ReapResult::Quarantined(_)
                    | ReapResult::Nothing,
                ) => {}
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    pub async fn held(&self, queues: &[StreamKey], consumer: &str) -> Result<Vec<HeldEntry>, ProcessEnded> {
        let holds = |stream: &StreamKey| {
            let stream = stream.clone();
            let consumer = consumer.into();
            Query::Holds { stream, consumer, count: 64 }
        };
        let answers = self.shared.store.read(&queues.iter().map(holds).collect::<Vec<_>>()).await?;
        let mut held = Vec::new();
        for (queue, answer) in queues.iter().zip(answers) {
            let Value::Holds(entries) = answer else { continue };
            held.extend(entries.into_iter().map(|entry| (queue.clone(), entry)));
        }
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let queries: Vec<Query> =
            held.iter().map(|(queue, entry)| Query::Entry(queue.clone(), entry.clone())).collect();
        let entries = self.shared.store.read(&queries).await?;
        let entries = held.into_iter().zip(entries).map(|((queue, entry), answer)| {
            let fields = if let Value::Entry(Some(fields)) = answer { fields } else { Vec::new() };
            HeldEntry { queue, entry, fields }
        });
        Ok(entries.collect())
    }
}

fn head() -> Head {
    serde_json::from_value(serde_json::json!({"ag": "kelly", "rt": "box", "dl": 0, "dg": "d", "n": 0})).unwrap()
}

// ---- the game

pub struct Game {
    pub executor: Executor,
    pub oracle: SharedOracle,
    shared: Arc<Shared>,
    manual: Arc<ManualClock>,
    plan: Plan,
    pub words: BTreeMap<String, u64>,
    /// No guarantee covers these calls, because two faults coincided.
    pub excused: u64,
    /// The store's clock minus the other clocks.
    offset_ms: i64,
}

impl Game {
    pub fn new(seed: u64, plan: Plan) -> Self {
        let clock = VirtualClock::default();
        clock.set(BEGIN_MS);
        let manual = Arc::new(ManualClock::new(BEGIN_MS));
        let options =
            MemoryOptions { clock: Arc::<ManualClock>::clone(&manual), lease_ms: LEASE_MS, ..MemoryOptions::default() };
        let oracle: SharedOracle = Arc::new(Mutex::new(Oracle::default()));
        let store = Watched { inner: FaultyStore::new(options, seed, 2_000), oracle: Arc::clone(&oracle) };
        let bounds = Bounds { lease_ms: LEASE_MS, ..Bounds::default() };
        let shared = Arc::new(Shared {
            store,
            oracle: Arc::clone(&oracle),
            clock: clock.clone(),
            bounds,
            rules: Rulebook::new(),
            turns: plan.turns,
        });
        let mut executor = Executor::new(seed, clock);
        let of = Arc::clone(&shared);
        executor.add(false, Box::new(move |n| Box::pin(produce(Arc::clone(&of), n, seed, plan))));
        if plan.governed {
            let of = Arc::clone(&shared);
            executor.add(false, Box::new(move |n| Box::pin(crate::governed::approve(Arc::clone(&of), n, seed))));
        }
        for index in 0..plan.schedulers {
            let of = Arc::clone(&shared);
            executor.add(true, Box::new(move |n| Box::pin(schedule(Arc::clone(&of), index, n, seed))));
        }
        for index in 0..plan.workers {
            let of = Arc::clone(&shared);
            executor.add(true, Box::new(move |n| Box::pin(crate::worker::work(Arc::clone(&of), index, n, seed))));
        }
        Self { executor, oracle, shared, manual, plan, words: BTreeMap::new(), excused: 0, offset_ms: 0 }
    }

    /// First with faults, then without, until all turns have ended.
    pub fn play(&mut self) {
        let plan = self.plan;
        let faults =
            Faults { refused_per_mille: plan.refused, unanswered_per_mille: plan.unanswered, ..Faults::default() };
        self.shared.store.inner.set_faults(faults);
        let rough = Chances {
            crash: plan.crash,
            pause: plan.pause,
            pause_max_ms: 3 * LEASE_MS,
            advance: plan.advance,
            advance_max_ms: 10,
        };
        self.run(rough, 40_000, plan);
        self.shared.store.inner.set_faults(Faults::default());
        self.shared.store.inner.set_memory_short(false);
        self.run(Chances { crash: 0, pause: 0, ..rough }, POLLS_MAX, Plan { lose: 0, step: 0, short: 0, ..plan });
    }

    fn run(&mut self, chances: Chances, polls: u64, plan: Plan) {
        for poll in 0..polls {
            self.executor.step(chances);
            if self.happens(plan.step) {
                self.offset_ms += self.executor.rng.random_range(-STEP_MS_MAX..=STEP_MS_MAX);
            }
            self.manual.set(self.executor.clock.now_ms() + self.offset_ms);
            if self.happens(plan.lose) {
                self.lose();
            }
            if self.happens(plan.short) {
                let short = self.executor.rng.random_range(0..2) == 0;
                self.shared.store.inner.set_memory_short(short);
            }
            if poll % 512 == 0 && self.is_over() {
                return;
            }
        }
    }

    fn happens(&mut self, chance: u32) -> bool {
        chance > 0 && self.executor.rng.random_range(0..10_000) < chance
    }

    /// Does nothing during the lease after the previous restart.
    fn lose(&mut self) {
        let now_ms = self.executor.clock.now_ms();
        let lost_ms = self.executor.rng.random_range(0..=LOST_MS_MAX);
        let mut oracle = self.oracle.lock().unwrap();
        if oracle.losses.last().is_none_or(|loss| now_ms > loss.at_ms + 2 * LEASE_MS) {
            self.shared.store.inner.lose(lost_ms);
            oracle.lost(now_ms, lost_ms);
        }
    }

    fn peek(&self, query: Query) -> Value {
        futures::executor::block_on(self.shared.store.inner.inner().read(&[query])).unwrap().remove(0)
    }

    fn is_over(&self) -> bool {
        let accepted = self.oracle.lock().unwrap().accepted.len();
        let inbound = futures::executor::block_on(self.shared.store.inner.inner().backlog(&keys::turns())).unwrap();
        accepted == self.shared.turns
            && inbound.waiting + inbound.held == 0
            && matches!(self.peek(Query::Size(keys::timers())), Value::Size(0))
    }

    pub fn violations(&mut self) -> Vec<String> {
        let mut oracle = self.oracle.lock().unwrap();
        oracle.check_caps();
        let mut violations = std::mem::take(&mut oracle.violations);
        violations.extend(crate::governed::check(&oracle.in_order(), &oracle.people));
        let accepted = oracle.accepted.clone();
        let executions = oracle.executions.clone();
        let excused = oracle.excused();
        drop(oracle);
        let replies = self.replies();
        for (turn, calls) in &accepted {
            let Value::Record(Some(stored)) = self.peek(Query::Record(turn_name(turn).finished())) else {
                violations
                    .push(format!("{turn} has not ended: {:?}", self.peek(Query::Record(turn_name(turn).record()))));
                continue;
            };
            let text = tickfleet_core::record::RecordText::parse(&stored).unwrap();
            let finished = Finished::decode(&text.content).unwrap();
            let of_turn = replies.get(turn).cloned().unwrap_or_default();
            // If the turn ended while memory was short, the finished record has no reply, so read the inbox.
            let [reply] = of_turn.as_slice() else {
                violations.push(format!("{turn}: replies {of_turn:?}, finished {}", finished.reply));
                continue;
            };
            if !finished.reply.is_empty() && finished.reply != *reply {
                violations.push(format!("{turn}: reply {reply}, finished {}", finished.reply));
            }
            let reply: serde_json::Value = serde_json::from_str(reply).unwrap();
            let results = reply["results"].as_array().unwrap();
            if results.len() != *calls {
                violations.push(format!("{turn}: {} results for {calls} calls", results.len()));
            }
            for (position, result) in results.iter().enumerate() {
                let ran = executions.get(&(turn.clone(), position)).cloned().unwrap_or_default();
                let word = result.as_str().unwrap();
                let is_once = ran.first().is_some_and(|one| is_once(&one.tool));
                let fits = match word {
                    "ok" => !ran.is_empty(),
                    // Calls wait only for future events, so `late` has two causes: a clock stepped, or failed store
                    // calls made the reaper late by a whole deadline.
                    "late" => ran.is_empty() && (self.plan.step > 0 || self.plan.refused > 0),
                    "not_run" | "refused" | "same" => ran.is_empty(),
                    "tried" | "failed" => !is_once || ran.is_empty(),
                    _ => true,
                };
                if !fits || is_once && ran.len() > 1 {
                    // After a restart of the store, only the journal of the worker knows the call. A worker that
                    // crashed, or did not report its journal in time, cannot keep the promise.
                    if ran.iter().any(|one| excused.contains(&one.number)) {
                        self.excused += 1;
                    } else {
                        violations.push(format!("{turn}/{position} is `{word}`, and ran: {ran:?}"));
                    }
                }
                *self.words.entry(word.to_owned()).or_default() += 1;
            }
        }
        for limit in [limits::UNFINISHED, limits::BYTES, limits::IN_FLIGHT] {
            if let Value::Counter(Some(state)) = self.peek(Query::Counter(CounterKey::new(limit, "acme")))
                && state.used > 0
            {
                violations.push(format!("{limit} is {} at the end", state.used));
            }
        }
        if let Value::Counter(Some(state)) = self.peek(Query::Counter(CounterKey::new("looks", "all")))
            && state.used > 0
        {
            violations.push(format!("{} permits are not returned", state.used));
        }
        if let Value::Size(asked @ 1..) = self.peek(Query::Size(tickfleet_core::call::approval::waiting())) {
            violations.push(format!("{asked} approvals wait for nobody"));
        }
        for agent in AGENTS {
            let key = SessionName { tenant: turn_name("t").tenant, session: format!("agent:{agent}") }.key();
            let Value::Record(Some(stored)) = self.peek(Query::Record(key)) else { continue };
            let text = tickfleet_core::record::RecordText::parse(&stored).unwrap();
            let session = Session::decode(&text.content).unwrap();
            if !session.running.is_empty() {
                violations.push(format!("calls of {agent} are under way: {:?}", session.running));
            }
        }
        for timer in [SetKey::new("timers")] {
            if let Value::Members(members) = self.peek(Query::First { set: timer, upto: None, count: 100 })
                && !members.is_empty()
            {
                violations.push(format!("timers are left: {members:?}"));
            }
        }
        violations
    }

    fn replies(&self) -> BTreeMap<String, Vec<String>> {
        let stream = StreamKey::new("replies:acme:box");
        let query = Query::Entries { stream, after: None::<EntryId>, count: 100_000 };
        let Value::Entries(entries) = self.peek(query) else { return BTreeMap::new() };
        let mut replies: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (_, fields) in entries {
            let text = fields.iter().find(|(field, _)| &**field == "reply").map(|(_, value)| value.to_vec()).unwrap();
            let text = String::from_utf8(text).unwrap();
            let reply: serde_json::Value = serde_json::from_str(&text).unwrap();
            replies.entry(reply["turn_id"].as_str().unwrap().to_owned()).or_default().push(text);
        }
        replies
    }
}
