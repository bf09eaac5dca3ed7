//! A small fleet on the store in memory: producers, two schedulers with views that may be stale, and a worker.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::bounds::Bounds;
use tickfleet_core::keys::{self, TurnName, limits};
use tickfleet_core::recovery::inbound::TakenInbound;
use tickfleet_core::turn::admit::{Admit, AdmitResult, place_of};
use tickfleet_core::turn::advance::AdvanceResult;
use tickfleet_core::turn::end::{EndedCall, Render, RenderedCall, ReplyFrame};
use tickfleet_core::turn::limit::{Debit, Generations, LimitDecision, Policy, ResolvedCaps, ResolvedLimit};
use tickfleet_core::turn::release::{QueueHead, Rearm, Release, ReleaseResult};
use tickfleet_core::turn::state::{EndReason, Finished};
use tickfleet_core::turn::submit::{Inbound, Submit, Submitted};
use tickfleet_core::turn::{Due, Head, Note, Park, ParkReason, Settle, Slice, State, Turn, WaitReason};
use tickfleet_core::{
    CounterKey, CounterState, Decision, EntryId, Query, Record, RecordKey, SetKey, StreamKey, Transaction, Value, View,
    Write,
};
use tickfleet_model::day::Tz;
use tickfleet_model::{Call, Caps, DayCapAction, InboxName, Priority, TenantId, TurnId};
use tickfleet_store::seam::memory::{ManualClock, MemoryOptions, MemoryStore};
use tickfleet_store::seam::{RunError, ShardState, Store, TakeRequest, Versions, run_with};

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
            let held = resolved.window == tickfleet_core::turn::limit::WindowKind::Concurrency;
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

#[derive(Debug, Clone)]
pub struct Dispatched {
    pub name: TurnName,
    pub calls: usize,
    pub at_ms: i64,
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
    /// The counters as each scheduler last read them.
    pub beliefs: [Vec<(CounterKey, CounterState)>; 2],
    pub dispatched: Vec<Dispatched>,
    pub agents: HashMap<TurnName, String>,
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
            beliefs: [Vec::new(), Vec::new()],
            dispatched: Vec::new(),
            agents: HashMap::new(),
        }
    }

    /// With `by`, uses the last known counters of that scheduler, which may be stale.
    pub async fn run<D: Decision>(&mut self, by: Option<usize>, decisions: &[D]) -> Vec<(D::Output, i64)> {
        self.try_run(by, decisions).await.into_iter().map(Result::unwrap).collect()
    }

    pub async fn try_run<D: Decision>(
        &mut self,
        by: Option<usize>,
        decisions: &[D],
    ) -> Vec<Result<(D::Output, i64), RunError>> {
        let mut view = View::default();
        for (counter, state) in by.iter().flat_map(|by| &self.beliefs[*by]) {
            view.insert(Query::Counter(counter.clone()), Value::Counter(Some(*state)));
        }
        let (shard, receipts) = run_with(&self.store, &self.versions, self.shard, &mut view, decisions).await.unwrap();
        self.shard = shard;
        if let Some(by) = by {
            let of_agents = ["kelly", "robin"].map(|agent| CounterKey::new(limits::TICK, format!("acme:{agent}")));
            let of_rows = self.table.resolved_limits.iter().map(|resolved| CounterKey::new(&resolved.name, "all"));
            let counters = of_agents.into_iter().chain(of_rows);
            self.beliefs[by] = counters.filter_map(|key| Some((key.clone(), view.counter(&key)?))).collect();
        }
        let answer = |receipt: Result<tickfleet_core::Receipt<D::Output>, RunError>| {
            receipt.map(|receipt| (receipt.result, receipt.committed.map_or(shard.now_ms, |commit| commit.now_ms)))
        };
        receipts.into_iter().map(answer).collect()
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
        self.run(None, &[submit]).await.remove(0).0
    }

    pub async fn take(&mut self, by: usize, count: usize) -> Vec<EntryId> {
        let take = TakeRequest { consumer: format!("s{by}").into(), queues: vec![keys::turns()], count, wait_ms: 0 };
        self.store.take(&take).await.unwrap().into_iter().map(|taken| taken.entry).collect()
    }

    pub async fn admit(&mut self, by: usize, turns: &[(EntryId, Head, Vec<Call>)]) -> Vec<AdmitResult> {
        self.admit_as(by, turns, None).await
    }

    pub async fn admit_as(
        &mut self,
        by: usize,
        turns: &[(EntryId, Head, Vec<Call>)],
        given: Option<&str>,
    ) -> Vec<AdmitResult> {
        let bounds = self.bounds.clone();
        let table = Arc::clone(&self.table);
        let admit = |(entry, head, calls): &'_ (EntryId, Head, Vec<Call>)| (entry.clone(), head.clone(), calls.clone());
        let turns: Vec<(EntryId, Head, Vec<Call>)> = turns.iter().map(admit).collect();
        let epoch = match self.taken_epoch {
            Some(epoch) => epoch,
            None => self.store.shard().await.unwrap().epoch,
        };
        let admit = |of: &'_ usize| {
            let (entry, head, calls) = &turns[*of];
            Admit {
                entry: TakenInbound { id: entry.clone(), epoch },
                origin: entry.clone(),
                name: given.map_or_else(|| turn_name(&format!("t{entry}")), turn_name),
                given: given.is_some(),
                head: head.clone(),
                priority: Priority::Normal,
                calls,
                policy: &*table,
                render: &TestRenderer,
                bounds: &bounds,
            }
        };
        let decisions: Vec<Admit<'_>> = (0..turns.len()).collect::<Vec<_>>().iter().map(admit).collect();
        let results = self.run(Some(by), &decisions).await;
        for (decision, (admitted, at_ms)) in decisions.iter().zip(&results) {
            self.agents.insert(decision.name.clone(), decision.head.agent.to_string());
            if let AdmitResult::Advanced(AdvanceResult::Dispatched { calls, resumed: false }) = admitted {
                self.dispatched.push(Dispatched { name: decision.name.clone(), calls: *calls, at_ms: *at_ms });
            }
        }
        results.into_iter().map(|(admitted, _)| admitted).collect()
    }

    /// Outcomes are in the order of the turns.
    pub async fn release(&mut self, by: usize) -> Vec<(TurnName, ReleaseResult)> {
        let mut all = Vec::new();
        self.shard = self.store.shard().await.unwrap();
        let upto = u64::try_from(self.shard.now_ms).unwrap();
        for name in self.members(keys::timers(), Some(upto)).await {
            let counter = name.strip_prefix("throttle:").and_then(|name| name.split_once('@'));
            if let Some((limit, counter)) = counter {
                all.extend(self.release_queue(by, &CounterKey::new(limit, counter)).await);
            }
        }
        all
    }

    async fn release_queue(&mut self, by: usize, counter: &CounterKey) -> Vec<(TurnName, ReleaseResult)> {
        let bounds = self.bounds.clone();
        let table = Arc::clone(&self.table);
        let mut all = Vec::new();
        loop {
            let head = self.run(Some(by), &[Rearm { counter: counter.clone() }]).await.remove(0).0;
            let QueueHead::Turns(turns) = head else { return all };
            let release = |name: &TurnName| Release {
                counter: counter.clone(),
                name: name.clone(),
                policy: &*table,
                render: &TestRenderer,
                sections: &[],
                bounds: &bounds,
            };
            let decisions: Vec<Release<'_>> = turns.iter().map(release).collect();
            let results = self.run(Some(by), &decisions).await;
            for (name, (released, at_ms)) in turns.iter().zip(&results) {
                if let ReleaseResult::Advanced(AdvanceResult::Dispatched { calls, resumed: false }) = released {
                    self.dispatched.push(Dispatched { name: name.clone(), calls: *calls, at_ms: *at_ms });
                }
            }
            let has_left_queue = results.iter().any(|(released, _)| released.has_left_queue());
            all.extend(turns.into_iter().zip(results.into_iter().map(|(released, _)| released)));
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
            self.run(None, &[settle]).await;
        }
    }

    /// Lets each taken slice wait for an approval. The slice then returns its permits.
    pub async fn park(&mut self, most_ms: i64) {
        let queues = Priority::ALL.map(keys::ready).to_vec();
        let take = TakeRequest { consumer: "w".into(), queues, count: 1, wait_ms: 0 };
        for taken in self.store.take(&take).await.unwrap() {
            let slice = Slice::read(taken.queue, taken.entry, &taken.fields).unwrap();
            let reason = WaitReason::Approval { approval: "a".into() };
            let reason = ParkReason::Wait { reason, most_ms, has_begun: false, cause: String::new() };
            let park =
                Park { slice: &slice, reason: &reason, had_parallel_reads: false, waits_while: &[], sections: &[] };
            self.run(None, &[park]).await;
        }
    }

    pub async fn fire(&mut self) {
        self.shard = self.store.shard().await.unwrap();
        let upto = u64::try_from(self.shard.now_ms).unwrap();
        let timers = self.members(keys::timers(), Some(upto)).await;
        for name in timers.iter().filter_map(|timer| TurnName::parse(timer.strip_prefix("turn:")?)) {
            let bounds = self.bounds.clone();
            self.run(None, &[Due { name: &name, render: &TestRenderer, sections: &[], bounds: &bounds }]).await;
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

    /// A turn is only in the throttle queue of its state, and has the matching timers. A turn without a record must be
    /// finished.
    pub async fn check_place(&self, name: &TurnName) {
        let counters = [
            CounterKey::new(limits::TICK, "acme:kelly"),
            CounterKey::new(limits::TICK, "acme:robin"),
            CounterKey::new(limits::DAY, "acme:kelly"),
            CounterKey::new(limits::IN_FLIGHT, "acme"),
        ];
        let resolved_limits = self.table.resolved_limits.iter().map(|resolved| CounterKey::new(&resolved.name, "all"));
        let mut queues = Vec::new();
        for counter in counters.into_iter().chain(resolved_limits) {
            let members = self.members(keys::throttle_queue(&counter), None).await;
            if members.contains(&name.to_string()) {
                queues.push(counter);
            }
        }
        let timers = self.members(keys::timers(), None).await;
        match self.turn(name).await.map(|turn| turn.state) {
            Some(State::Throttled { counter, .. }) => {
                assert_eq!(queues, std::slice::from_ref(&counter), "{name}");
                assert!(timers.contains(&keys::throttle_timer(&counter)), "{name}: no timer of {counter:?}");
                assert!(timers.contains(&name.timer()), "{name}: no timer of its own");
            }
            Some(State::Ready { .. } | State::Waiting { .. }) => {
                assert_eq!(queues, [], "{name}");
                assert!(timers.contains(&name.timer()), "{name}: no timer of its own");
            }
            Some(state) => panic!("{name}: {state:?}"),
            None => {
                assert_eq!(queues, [], "{name}");
                assert!(self.finished(name).await.is_some(), "{name} is nowhere");
            }
        }
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

pub fn ended(admitted: &AdmitResult) -> Option<&EndReason> {
    match admitted {
        AdmitResult::Advanced(AdvanceResult::Ended { reason }) => reason.as_ref(),
        _ => None,
    }
}

/// The turn's name must be derived from the turn's entry.
pub fn place(name: &TurnName) -> u64 {
    place_of(&EntryId::new(name.turn.as_str().trim_start_matches('t')))
}
