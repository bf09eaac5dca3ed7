//! A small fleet on the store in memory: producers, a scheduler and a worker.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::bounds::Bounds;
use tickfleet_core::keys::{self, TurnName};
use tickfleet_core::recovery::inbound::TakenInbound;
use tickfleet_core::turn::admit::{Admit, AdmitResult};
use tickfleet_core::turn::advance::AdvanceResult;
use tickfleet_core::turn::end::{EndedCall, Render, RenderedCall, ReplyFrame};
use tickfleet_core::turn::limit::{Debit, Generations, LimitDecision, Policy, ResolvedCaps, ResolvedLimit, WindowKind};
use tickfleet_core::turn::release::{QueueHead, Rearm, Release, ReleaseResult};
use tickfleet_core::turn::state::{EndReason, Finished};
use tickfleet_core::turn::submit::{Inbound, Submit, Submitted};
use tickfleet_core::turn::{Head, Note, Settle, Slice, Turn};
use tickfleet_core::{
    CounterKey, CounterState, Decision, EntryId, Query, Record, RecordKey, SetKey, StreamKey, Transaction, Value, Write,
};
use tickfleet_model::day::Tz;
use tickfleet_model::limit::{LimitMode, OnReach};
use tickfleet_model::{Call, Caps, DayCapAction, InboxName, Priority, TenantId, TurnId};
use tickfleet_store::seam::memory::{ManualClock, MemoryOptions, MemoryStore};
use tickfleet_store::seam::{RunError, ShardState, Store, TakeRequest, Versions, run};

pub const BEGIN_MS: i64 = 1_000_000_000;
pub const TICK_MS: i64 = 5_000;

/// Each limit counts the calls of one tool, and has the name of this tool.
pub struct Table {
    pub caps: Caps,
    pub resolved_limits: Vec<Arc<ResolvedLimit>>,
    pub generations: Generations,
    pub fixed: Option<LimitDecision>,
}

impl Table {
    pub fn new(calls_per_tick: u32, calls_per_day: u32) -> Self {
        let caps = Caps {
            tick_ms: TICK_MS,
            calls_per_tick,
            calls_per_day,
            tenant_calls_per_day: None,
            on_day_cap: DayCapAction::Reject,
        };
        Self { caps, resolved_limits: Vec::new(), generations: Generations::default(), fixed: None }
    }
}

impl Policy for Table {
    fn rules(&self, name: &TurnName, head: &Head, calls: &[Call]) -> LimitDecision {
        if let Some(rules) = &self.fixed {
            return rules.clone();
        }
        let mut debits = ResolvedCaps::new(&self.caps, Tz::UTC).debits(&name.tenant, &head.agent, 0, calls.len());
        for resolved in &self.resolved_limits {
            let held = resolved.window == WindowKind::Concurrency;
            let mut has_permit = false;
            let amount = |call: &Call| {
                let counts = call.tool == *resolved.name && !(held && has_permit);
                has_permit |= counts;
                let amount = if call.arguments.is_empty() { Some(1) } else { call.arguments.parse().ok() };
                if counts { amount } else { Some(0) }
            };
            let amounts: Vec<Option<u64>> = calls.iter().map(amount).collect();
            if amounts.iter().any(|amount| *amount != Some(0)) {
                let counter = CounterKey::new(&resolved.name, "all");
                debits.push(Debit { limit: Arc::clone(resolved), counter, stagger_ms: 0, amounts });
            }
        }
        LimitDecision::Debits(debits)
    }

    fn generations(&self) -> Generations {
        self.generations
    }
}

pub struct TestRenderer;

impl Render for TestRenderer {
    fn ended(&self, call: &EndedCall<'_>) -> RenderedCall {
        let word = format!("\"{:?} {}\"", call.reason, call.position);
        RenderedCall { result: word.into(), failed: true, ..RenderedCall::default() }
    }

    fn frame(&self, name: &TurnName, _head: &Head) -> ReplyFrame {
        ReplyFrame { head: format!("{{\"turn_id\":\"{}\",\"results\":[", name.turn), messages: None, audits: false }
    }
}

pub struct Fleet {
    pub clock: Arc<ManualClock>,
    pub store: MemoryStore,
    pub versions: Versions,
    pub shard: ShardState,
    /// The epoch in which entries were taken; by default the store's current epoch.
    pub taken_epoch: Option<u64>,
    pub bounds: Bounds,
    pub table: Arc<Table>,
    pub dispatched: Vec<TurnName>,
}

pub fn turn_name(turn: &str) -> TurnName {
    TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(turn).unwrap() }
}

pub fn call(tool: &str, arguments: &str) -> Call {
    Call { provider_id: None, tool: tool.into(), arguments: arguments.into() }
}

pub fn head(agent: &str, deadline_ms: i64) -> Head {
    let head = format!(r#"{{"ag":"{agent}","dl":{deadline_ms},"dg":"d","n":0,"rt":"box"}}"#);
    serde_json::from_str(&head).unwrap()
}

impl Fleet {
    pub async fn new(table: Table) -> Self {
        let clock = Arc::new(ManualClock::new(BEGIN_MS));
        let options = MemoryOptions { clock: Arc::<ManualClock>::clone(&clock), ..MemoryOptions::default() };
        let store = MemoryStore::new(options);
        let queues = Priority::ALL.map(keys::ready);
        store.ensure_queues(&queues).await.unwrap();
        store.ensure_queues(&[keys::turns()]).await.unwrap();
        let shard = store.shard().await.unwrap();
        Self {
            clock,
            store,
            versions: Versions::new("v"),
            shard,
            taken_epoch: None,
            bounds: Bounds::default(),
            table: Arc::new(table),
            dispatched: Vec::new(),
        }
    }

    pub async fn run<D: Decision>(&mut self, decisions: &[D]) -> Vec<D::Output> {
        self.try_run(decisions).await.into_iter().map(Result::unwrap).collect()
    }

    pub async fn try_run<D: Decision>(&mut self, decisions: &[D]) -> Vec<Result<D::Output, RunError>> {
        let (shard, receipts) = run(&self.store, &self.versions, self.shard, decisions).await.unwrap();
        self.shard = shard;
        receipts.into_iter().map(|receipt| receipt.map(|receipt| receipt.result)).collect()
    }

    pub async fn submit(&mut self, given: Option<(&str, &str)>, payload: &str) -> Submitted {
        let bounds = self.bounds.clone();
        let submit = Submit {
            to: Inbound::Turns,
            tenant: TenantId::new("acme").unwrap(),
            given: given.map(|(id, digest)| (TurnId::new(id).unwrap(), digest.to_owned())),
            reply_to: Some(InboxName::new("box").unwrap()),
            payload: Bytes::from(payload.to_owned()),
            bounds: &bounds,
        };
        self.run(&[submit]).await.remove(0)
    }

    pub async fn take(&mut self, count: usize) -> Vec<EntryId> {
        let take = TakeRequest { consumer: "s".into(), queues: vec![keys::turns()], count, wait_ms: 0 };
        self.store.take(&take).await.unwrap().into_iter().map(|taken| taken.entry).collect()
    }

    pub async fn admit(&mut self, turn: &(EntryId, Head, Vec<Call>)) -> AdmitResult {
        self.admit_as(turn, None).await
    }

    pub async fn admit_as(
        &mut self,
        (entry, head, calls): &(EntryId, Head, Vec<Call>),
        given: Option<&str>,
    ) -> AdmitResult {
        let bounds = self.bounds.clone();
        let table = Arc::clone(&self.table);
        let epoch = match self.taken_epoch {
            Some(epoch) => epoch,
            None => self.store.shard().await.unwrap().epoch,
        };
        let name = given.map_or_else(|| turn_name(&format!("t{entry}")), turn_name);
        let admit = Admit {
            entry: TakenInbound { id: entry.clone(), epoch },
            origin: entry.clone(),
            name: name.clone(),
            given: given.is_some(),
            head: head.clone(),
            priority: Priority::Normal,
            calls,
            policy: &*table,
            render: &TestRenderer,
            bounds: &bounds,
        };
        let admitted = self.run(&[admit]).await.remove(0);
        if let AdmitResult::Advanced(AdvanceResult::Dispatched { resumed: false, .. }) = admitted {
            self.dispatched.push(name);
        }
        admitted
    }

    /// Outcomes are in the order of the turns.
    pub async fn release(&mut self) -> Vec<(TurnName, ReleaseResult)> {
        let mut all = Vec::new();
        self.shard = self.store.shard().await.unwrap();
        let upto = u64::try_from(self.shard.now_ms).unwrap();
        for name in self.members(keys::timers(), Some(upto)).await {
            let counter = name.strip_prefix("throttle:").and_then(|name| name.split_once('@'));
            if let Some((limit, counter)) = counter {
                all.extend(self.release_queue(&CounterKey::new(limit, counter)).await);
            }
        }
        all
    }

    async fn release_queue(&mut self, counter: &CounterKey) -> Vec<(TurnName, ReleaseResult)> {
        let bounds = self.bounds.clone();
        let table = Arc::clone(&self.table);
        let mut all = Vec::new();
        loop {
            let head = self.run(&[Rearm { counter: counter.clone() }]).await.remove(0);
            let QueueHead::Turns(turns) = head else { return all };
            let release = |name: &TurnName| release(counter, name, &table, &bounds);
            let decisions: Vec<Release<'_>> = turns.iter().map(release).collect();
            let results = self.run(&decisions).await;
            for (name, released) in turns.iter().zip(&results) {
                if let ReleaseResult::Advanced(AdvanceResult::Dispatched { resumed: false, .. }) = released {
                    self.dispatched.push(name.clone());
                }
            }
            let has_left_queue = results.iter().any(ReleaseResult::has_left_queue);
            all.extend(turns.into_iter().zip(results));
            if !has_left_queue {
                return all;
            }
        }
    }

    pub async fn work(&mut self, count: usize) {
        let queues = Priority::ALL.map(keys::ready).to_vec();
        let take = TakeRequest { consumer: "w".into(), queues, count, wait_ms: 0 };
        for taken in self.store.take(&take).await.unwrap() {
            let slice = Slice::read(taken.queue, taken.entry, &taken.fields).unwrap();
            check_stamp(&slice);
            let ok = |at| RenderedCall { result: format!("\"ok {at}\"").into(), ..RenderedCall::default() };
            let results: Vec<RenderedCall> = (slice.turn.position..).map(ok).take(slice.calls.len()).collect();
            let bounds = self.bounds.clone();
            let frame = TestRenderer.frame(&slice.name, &slice.turn.head);
            let slice = &slice;
            let results = results.as_slice();
            let frame = &frame;
            let bounds = &bounds;
            let settle = Settle { slice, results, frame, sections: &[], reason: None, canceled: None, bounds };
            self.run(&[settle]).await;
        }
    }

    pub async fn query(&self, query: Query) -> Value {
        self.store.read(&[query]).await.unwrap().remove(0)
    }

    pub async fn members(&self, set: SetKey, upto: Option<u64>) -> Vec<String> {
        match self.query(Query::First { set, upto, count: 10_000 }).await {
            Value::Members(members) => members.into_iter().map(|(member, _)| member.to_string()).collect(),
            _ => Vec::new(),
        }
    }

    pub async fn record<T: Record>(&self, key: RecordKey) -> Option<T> {
        match self.query(Query::Record(key)).await {
            Value::Record(Some(text)) => Some(tickfleet_core::Stored::<T>::read(&text).unwrap().value),
            _ => None,
        }
    }

    pub async fn turn(&self, name: &TurnName) -> Option<Turn> {
        self.record(name.record()).await
    }

    pub async fn finished(&self, name: &TurnName) -> Option<Finished> {
        self.record(name.finished()).await
    }

    pub async fn counter(&self, limit: &str, counter: &str) -> CounterState {
        match self.query(Query::Counter(CounterKey::new(limit, counter))).await {
            Value::Counter(state) => state.unwrap_or_default(),
            _ => CounterState::default(),
        }
    }

    pub async fn entries(&self, stream: StreamKey) -> usize {
        match self.query(Query::Entries { stream, after: None, count: 100_000 }).await {
            Value::Entries(entries) => entries.len(),
            _ => 0,
        }
    }

    pub async fn write(&self, writes: Vec<Write>) {
        let mut transaction = Transaction::new(self.versions.draw());
        transaction.writes = writes;
        self.store.commit(&[transaction]).await.unwrap().results.remove(0).unwrap();
    }
}

/// A stamp has the counters after the debits. The usage of each limit in the last note is within its bound.
fn check_stamp(slice: &Slice) {
    let Some(Note::Admitted { limits, .. }) = slice.turn.notes.last() else { return };
    if slice.debited.is_empty() {
        return;
    }
    assert!(slice.debited.len() >= limits.len());
    for ((counter, max), debited) in limits.iter().zip(&slice.debited) {
        assert!(debited.used <= *max, "{counter:?}");
    }
}

pub fn release<'a>(counter: &CounterKey, name: &TurnName, table: &'a Table, bounds: &'a Bounds) -> Release<'a> {
    let (counter, name) = (counter.clone(), name.clone());
    Release { counter, name, policy: table, render: &TestRenderer, sections: &[], bounds }
}

pub fn resolved(name: &str, max: u64, window: WindowKind, on_reach: OnReach) -> Arc<ResolvedLimit> {
    Arc::new(ResolvedLimit { name: name.into(), max, window, on_reach, mode: LimitMode::Enforce, counters_max: 100 })
}

pub fn ended(admitted: &AdmitResult) -> Option<&EndReason> {
    match admitted {
        AdmitResult::Advanced(AdvanceResult::Ended { reason }) => reason.as_ref(),
        _ => None,
    }
}
