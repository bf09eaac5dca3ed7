//! Games with slices. In every order of operations, each call has one result, no call that ran is reported as not run,
//! and no state remains.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod checks;
mod ops;
mod timers;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use self::ops::{Op, op};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tickfleet_core::decision::{Context, Decision, Step};
use tickfleet_core::keys::{self, TurnName, limits};
use tickfleet_core::mutants;
use tickfleet_core::recovery::Lease;
use tickfleet_core::recovery::epoch::{JournaledOutcome, RecoveredCalls, ReportBegunCall};
use tickfleet_core::recovery::reap::{HeldEntry, Reap, ReapResult};
use tickfleet_core::turn::end::{EndedCall, ExecutionState, Render, RenderedCall, ReplyFrame, parts};
use tickfleet_core::turn::slice::dispatch;
use tickfleet_core::turn::{
    Begun, Cancellation, Destination, Due, DueResult, Head, Park, ParkReason, ParkResult, RequeueReason, RequeueResult,
    RequeueSlice, RequeueUnreadable, Settle, SettleResult, Slice, State, Turn, WaitReason,
};
use tickfleet_core::view::Undecided;
use tickfleet_core::{
    ConditionalDebit, Conflict, CounterKey, Guard, Query, RecordKey, StreamKey, TimerRule, Transaction, Value, View,
    Window, Write,
};
use tickfleet_model::{AgentId, Call, InboxName, Priority, TaskGrant, TaskId, TenantId, TurnId};
use tickfleet_store::seam::memory::faults::FaultyStore;
use tickfleet_store::seam::memory::{ManualClock, MemoryOptions};
use tickfleet_store::seam::{ShardState, Store, TakeRequest, Versions, run_with};

const LEASE_MS: i64 = 100;
const DEADLINE_MS: i64 = 2_000;
/// A restart loses at most the writes of the last `LOST_MS_MAX` milliseconds.
const LOST_MS_MAX: i64 = 300;
const TURNS: usize = 3;
const WORKERS: usize = 3;

/// One poll is enough, because the futures of a store in memory are ready at once.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the store waits"),
    }
}

fn queues() -> [StreamKey; 2] {
    [keys::suspect(Priority::Normal), keys::ready(Priority::Normal)]
}

fn tenant() -> TenantId {
    TenantId::new("acme").unwrap()
}

fn name(turn: usize) -> TurnName {
    TurnName { tenant: tenant(), turn: TurnId::new(format!("t{turn}")).unwrap() }
}

fn permit() -> CounterKey {
    CounterKey::new("running", "all")
}

fn counter(limit: &str) -> CounterKey {
    CounterKey::new(limit, "acme")
}

fn bounds() -> tickfleet_core::bounds::Bounds {
    tickfleet_core::bounds::Bounds { lease_ms: LEASE_MS, ..Default::default() }
}

const fn is_once(position: usize) -> bool {
    position % 2 == 1
}

fn call(position: usize) -> Call {
    Call { provider_id: None, tool: format!("tool{position}"), arguments: "{}".to_owned() }
}

fn text(call: &Call) -> Bytes {
    serde_json::to_vec(call).unwrap().into()
}

struct TestRenderer;

impl Render for TestRenderer {
    fn ended(&self, call: &EndedCall<'_>) -> RenderedCall {
        let known = call.call.is_some();
        let word = if call.execution == ExecutionState::NotRun { "not_run" } else { "other" };
        let text = format!("{{\"p\":{},\"is\":\"{word}\",\"known\":{known}}}", call.position);
        RenderedCall { result: text.clone().into(), message: Bytes::new(), audit: text.into(), failed: true }
    }

    fn frame(&self, _: &TurnName, _: &Head) -> ReplyFrame {
        frame()
    }
}

fn frame() -> ReplyFrame {
    ReplyFrame { head: "{\"results\":[".to_owned(), messages: None, audits: false }
}

fn result(position: usize) -> RenderedCall {
    let text = format!("{{\"p\":{position},\"is\":\"ran\"}}");
    RenderedCall { result: text.clone().into(), message: Bytes::new(), audit: text.into(), failed: false }
}

struct Play<'a, F>(&'a TurnName, F);

impl<F> Decision for Play<'_, F>
where
    F: Sync + Fn(Turn, &mut Transaction, &View, &Context) -> Result<bool, Undecided>,
{
    type Output = Option<Turn>;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Option<Turn>>, Undecided> {
        let Some(stored) = view.record::<Turn>(&self.0.record())? else { return Ok(Step::Return(None)) };
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Version(self.0.record(), stored.version));
        let turn = stored.value;
        if (self.1)(turn.clone(), &mut transaction, view, context)? {
            return Ok(Step::Commit(transaction, Some(turn)));
        }
        Ok(Step::Return(None))
    }
}

#[derive(Clone)]
struct HeldSlice {
    slice: Slice,
    /// Not yet settled.
    ran: BTreeSet<usize>,
    /// By position. The flag is true if the call was sent to its tool.
    begun: Option<(usize, bool)>,
    nonce: String,
    /// In this epoch, the worker last confirmed that it owns the slice.
    epoch: u64,
    /// In this epoch, the worker took the slice.
    taken_epoch: u64,
}

struct Game {
    clock: Arc<ManualClock>,
    store: FaultyStore,
    versions: Versions,
    /// These reads are stale when a timer uses them.
    stale: BTreeMap<usize, (View, ShardState)>,
    workers: Vec<Vec<HeldSlice>>,
    calls: Vec<usize>,
    ran: BTreeSet<(usize, usize)>,
    /// With the nonce of the attempt.
    journal: Vec<(usize, usize, String)>,
    sent: BTreeSet<(usize, usize)>,
    canceled: BTreeSet<usize>,
    waits_for: BTreeMap<usize, usize>,
    nonce: u32,
}

impl Game {
    fn new(calls: &[usize]) -> Self {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let options = MemoryOptions { clock: clock.clone(), lease_ms: LEASE_MS, bytes_max: 0 };
        let mut game = Self {
            clock,
            store: FaultyStore::new(options, 1, LOST_MS_MAX),
            versions: Versions::new("g"),
            stale: BTreeMap::new(),
            workers: vec![Vec::new(); WORKERS],
            calls: calls.to_vec(),
            ran: BTreeSet::new(),
            journal: Vec::new(),
            sent: BTreeSet::new(),
            canceled: BTreeSet::new(),
            waits_for: BTreeMap::new(),
            nonce: 0,
        };
        for turn in 0..calls.len() {
            game.admit(turn);
        }
        // The game covers only turns that were reported as accepted, so no restart loses their admission.
        game.clock.step(LOST_MS_MAX + 1);
        game
    }

    fn shard(&self) -> ShardState {
        block_on(self.store.shard()).unwrap()
    }

    fn read(&self, query: &Query) -> Value {
        block_on(self.store.read(std::slice::from_ref(query))).unwrap().remove(0)
    }

    fn used(&self, counter: &CounterKey) -> u64 {
        match self.read(&Query::Counter(counter.clone())) {
            Value::Counter(state) => state.map_or(0, |state| state.used),
            _ => unreachable!(),
        }
    }

    fn decide<D: Decision>(&self, decision: &D) -> D::Output {
        self.decide_from(decision, &mut View::default(), self.shard())
    }

    fn decide_from<D: Decision>(&self, decision: &D, view: &mut View, shard: ShardState) -> D::Output {
        let run = run_with(&self.store, &self.versions, shard, view, std::slice::from_ref(decision));
        block_on(run).unwrap().1.remove(0).unwrap().result
    }

    fn commit(&self, transaction: Transaction) -> Result<(), Conflict> {
        block_on(self.store.commit(&[transaction])).unwrap().results.remove(0).map(drop)
    }

    fn record(&self, turn: usize) -> Option<Turn> {
        let mut view = View::default();
        let key = name(turn).record();
        let query = Query::Record(key.clone());
        view.insert(query.clone(), self.read(&query));
        view.record::<Turn>(&key).unwrap().map(|stored| stored.value)
    }

    /// The turn waits in the throttle queue of its agent's tick.
    fn admit(&mut self, turn: usize) {
        let name = name(turn);
        let now_ms = self.shard().now_ms;
        let head = Head {
            agent: AgentId::new("kelly").unwrap(),
            dialect: Default::default(),
            reply_to: Some(InboxName::new("inbox").unwrap()),
            deadline_ms: now_ms + DEADLINE_MS,
            submitted_ms: now_ms,
            digest: "d".to_owned(),
            calls: self.calls[turn],
            want_audits: false,
            strict: false,
            allowed_tools: None,
            parallel_reads: true,
            pending_approval: false,
            local_calls: false,
            context: Default::default(),
            task: turn.checked_sub(1).map(|above| (TaskId::new(format!("t{above}")).unwrap(), TaskGrant::default())),
            delegated_by: None,
            span: None,
        };
        let mut record: Turn = serde_json::from_value(serde_json::json!({
            "h": head, "q": Destination::Workers(Priority::Normal), "pl": turn, "t": now_ms, "b": 10,
            "s": State::Ready { upto: 0 },
        }))
        .unwrap();
        let mut transaction = Transaction::new(self.versions.draw());
        for (limit, amount) in [(limits::UNFINISHED, 1), (limits::BYTES, 10)] {
            transaction.write(Write::Add { counter: counter(limit), amount, ends_ms: None });
        }
        for position in 0..self.calls[turn] {
            transaction.write(Write::PutPart(name.record(), parts::call(position), text(&call(position))));
        }
        let queue = tickfleet_core::turn::throttle::undecided_queue(&name, &record);
        tickfleet_core::turn::throttle::throttle(&mut transaction, &name, &mut record, queue, now_ms, now_ms);
        self.commit(transaction).unwrap();
    }

    fn release(&self, turn: usize, count: usize) {
        let turn_name = name(turn);
        let total = self.calls[turn];
        let play = |mut turn: Turn, transaction: &mut Transaction, _: &View, context: &Context| {
            let State::Throttled { counter: queue, .. } = turn.state.clone() else { return Ok(false) };
            if context.failed(|conflict| matches!(conflict, Conflict::LimitReached { .. } | Conflict::Record { .. })) {
                return Ok(false);
            }
            transaction.guard(Guard::Absent(turn_name.cancellation()));
            let upto = total.min(turn.position + count);
            let room = |counter: CounterKey, amount: u64, max: u64, window| {
                let behind_queue = false;
                let shadow = false;
                let counters_max = 100;
                Guard::Debit(ConditionalDebit { counter, amount, max, window, behind_queue, shadow, counters_max })
            };
            let permits = (upto - turn.position) as u64;
            transaction.guard(room(permit(), permits, 4, Window::Concurrency));
            transaction.guard(room(counter(limits::IN_FLIGHT), 1, 100, Window::Total));
            turn.permits = vec![(permit(), permits)];
            turn.debited = turn.debited.max(upto);
            let member = turn_name.to_string().into();
            let set = keys::throttle_queue(&queue);
            transaction.write(Write::RemoveMember { set, member, queue_of: Some(queue) });
            let calls: Vec<Bytes> = (turn.position..upto).map(|position| text(&call(position))).collect();
            dispatch(transaction, &turn_name, &mut turn, &calls);
            Ok(true)
        };
        self.decide(&Play(&turn_name, play));
    }
}

fn game(cases: u32, max_shrink_iters: u32) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let strategy = (proptest::collection::vec(1..5_usize, TURNS), proptest::collection::vec(op(), 1..150));
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let play = |(calls, ops): (Vec<usize>, Vec<Op>)| {
        let mut game = Game::new(&calls);
        for op in &ops {
            game.play(op);
            game.check()?;
        }
        game.finish();
        game.check_end()
    };
    runner.run(&strategy, play).map_err(|error| error.to_string())
}

#[test]
fn each_call_gets_one_result_in_any_order_of_events() {
    if let Err(error) = game(256, 2_000) {
        panic!("{error}");
    }
}

#[test]
fn a_repeated_settle_is_recognized() {
    let mut game = Game::new(&[1, 2, 3]);
    for turn in 0..TURNS {
        game.release(turn, [1, 2, 1][turn]);
        game.take(0);
    }
    for held in 0..TURNS {
        let slice = &game.workers[0][held].slice;
        let results = [result(0), result(1)];
        let settle = Settle {
            slice,
            results: &results[..1],
            frame: &frame(),
            sections: &[],
            reason: None,
            canceled: None,
            bounds: &bounds(),
        };
        let context = game.shard().context(game.versions.draw());
        let Ok(Step::Commit(transaction, _)) = settle.decide(&View::default(), &context) else { panic!("it reads") };
        let commit =
            || block_on(game.store.commit(std::slice::from_ref(&transaction))).unwrap().results.remove(0).unwrap();
        assert!(!commit().was_committed);
        assert!(commit().was_committed);
    }
    game.check().unwrap();
}

#[test]
fn a_game_detects_each_missing_guard() {
    let guards = [
        "holder_guards_the_version",
        "park_guards_what_it_waits_for",
        "due_guards_the_version",
        "due_guards_the_cancellation",
        "expire_guards_that_nobody_has_read",
    ];
    let undetected: Vec<&str> = guards
        .into_iter()
        .filter(|guard| {
            mutants::with(guard, || std::panic::catch_unwind(|| game(1_000, 0)).is_ok_and(|played| played.is_ok()))
        })
        .collect();
    assert_eq!(undetected, Vec::<&str>::new());
}
