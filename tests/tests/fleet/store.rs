//! The store's verbs, one by one, against a real Redis.

mod ended;
mod few;
mod repair;
mod whole;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tickfleet_engine::report::{ReportOptions, ending as ending_of};
use tickfleet_model::policy::DayCapAction;
use tickfleet_model::{AgentId, Caps, ConsumerId, InboxName, Priority, TenantId, TurnId};
use tickfleet_store::{
    Admission, AdmitReply, Admitted, Begin, Begun, Cancelled, EndReason, Ending, Enqueued, Generations, HandBack,
    Inbound, JudgedBy, Lane, LanePolicy, LaneRelease, LaneTurns, Parked, PolicyRow, Promoted, Question, Queue,
    Rejection, ReleaseReply, ReplyFrame, Retry, Returned, Settled, SettledCall, Settlement, SliceEntry, Store,
    StoreOptions, Submission, Submitted, TimeSource, TurnName, TurnView,
};
use tickfleet_testkit::RedisServer;

const DAY: i64 = 86_400_000;
const START: i64 = 1_767_571_200_000;
/// A shard where no policy was announced and no tenant was set.
const BY: Generations = Generations { policy: 1, tenants: 0 };

struct World {
    _server: RedisServer,
    store: Store,
    clock: Arc<AtomicI64>,
}

impl World {
    async fn new() -> Self {
        Self::with(StoreOptions { turns_max: 5, ..StoreOptions::default() }).await
    }

    async fn with(options: StoreOptions) -> Self {
        let server = RedisServer::start().await;
        let clock = Arc::new(AtomicI64::new(START + 3_600_000));
        let options = Arc::new(options);
        let store = Store::open(&server.url(), 0, options).unwrap().with_time(TimeSource::Injected(clock.clone()));
        store.ensure_groups().await.unwrap();
        Self { _server: server, store, clock }
    }

    fn advance(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    fn row(&self, per_tick: u32, per_day: u32, on_day_cap: DayCapAction) -> PolicyRow {
        let now = self.clock.load(Ordering::SeqCst);
        let day_start_ms = now - now % DAY;
        let caps = Caps {
            tick_ms: 5_000,
            calls_per_tick: per_tick,
            calls_per_day: per_day,
            tenant_calls_per_day: None,
            on_day_cap,
        };
        PolicyRow { caps, day_start_ms, day_end_ms: day_start_ms + DAY }
    }

    fn turn(&self, id: &str, calls: usize) -> Admission {
        let meta = format!(
            r#"{{"ag":"kelly","dl":{},"dg":"d","n":{calls},"rt":"box"}}"#,
            self.clock.load(Ordering::SeqCst) + DAY
        );
        Admission {
            entry: String::new(),
            tenant: TenantId::new("acme").unwrap(),
            agent: AgentId::new("kelly").unwrap(),
            turn: TurnId::new(id).unwrap(),
            given: true,
            digest: "d".into(),
            policy: 0,
            priority: Priority::Normal,
            deadline_ms: self.clock.load(Ordering::SeqCst) + DAY,
            stagger_ms: 0,
            reply_to: InboxName::new("box").ok(),
            task: None,
            meta,
            calls: (0..calls).map(|i| format!(r#"{{"i":"c{i}","t":"echo","a":"{{}}"}}"#)).collect(),
            counters: Vec::new(),
        }
    }

    /// Admits turns from inbound entries of their own, which are what a scheduler's decision is fenced by.
    async fn admit(&self, row: PolicyRow, turns: &[Admission]) -> Vec<Admitted> {
        let consumer = ConsumerId::new("s0").unwrap();
        let mut turns = turns.to_vec();
        for turn in &mut turns {
            let mut add = redis::cmd("XADD");
            add.arg(self.store.keys().key("turns")).arg("*").arg("turn").arg("{}");
            turn.entry = self.store.connection().query(Question::Look, &add).await.unwrap();
        }
        let mut reader = self.store.reader(&consumer, Duration::from_millis(10));
        assert_eq!(reader.take("turns", turns.len()).await.unwrap().len(), turns.len());
        match self.store.admit(BY, &[row], &[], &turns).await.unwrap() {
            AdmitReply::Decided { turns, .. } => turns,
            other => panic!("{other:?}"),
        }
    }

    async fn lease(&self, worker: &str) -> Vec<SliceEntry> {
        let consumer = ConsumerId::new(worker).unwrap();
        self.store.beat(&consumer).await.unwrap();
        let mut reader = self.store.reader(&consumer, Duration::from_millis(10));
        let mut slices = Vec::new();
        for queue in [Queue::Ready(Priority::Normal), Queue::Suspect(Priority::Normal)] {
            let found = reader.take(&queue.to_string(), 10).await.unwrap();
            slices.extend(found.iter().map(|entry| SliceEntry::parse(queue.clone(), entry).unwrap()));
        }
        slices
    }

    async fn replies(&self) -> Vec<String> {
        let key = self.store.keys().key("replies:acme:box");
        let found: Vec<(String, std::collections::HashMap<String, String>)> = self
            .store
            .connection()
            .query(Question::Look, redis::cmd("XRANGE").arg(key).arg("-").arg("+"))
            .await
            .unwrap();
        found.into_iter().map(|(_, f)| f["reply"].clone()).collect()
    }
}

fn settlement(slice: &SliceEntry, count: usize) -> Settlement {
    Settlement {
        name: slice.name.clone(),
        fence: slice.fence.clone(),
        queue: Some(slice.queue.clone()),
        first: slice.first,
        reply_to: slice.meta.reply_to.clone(),
        frame: ReplyFrame { head: r#"{"results":["#.into(), calls: Some(slice.meta.calls), ..ReplyFrame::default() },
        calls: (0..count)
            .map(|i| SettledCall {
                result: format!("{}", slice.first + i),
                audit: "{}".into(),
                ..SettledCall::default()
            })
            .collect(),
    }
}

#[tokio::test]
async fn a_turn_within_budget_goes_out_at_once_and_comes_back_with_one_reply() {
    let w = World::new().await;
    let admitted = w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 2)]).await;
    assert!(matches!(admitted[0], Admitted::Dispatched), "{admitted:?}");
    let slices = w.lease("w1").await;
    assert_eq!((slices.len(), slices[0].calls.len()), (1, 2));
    assert_eq!(w.store.settle(&[settlement(&slices[0], 2)]).await.unwrap(), [Settled::Done]);
    assert_eq!(w.store.settle(&[settlement(&slices[0], 2)]).await.unwrap(), [Settled::Already]);
    assert_eq!(w.replies().await, [r#"{"results":[0,1]}"#]);
    assert!(matches!(w.store.look(&slices[0].name).await.unwrap(), TurnView::Finished(_)));
    let again = w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 2)]).await;
    assert!(matches!(again[0], Admitted::Duplicate));
}

#[tokio::test]
async fn calls_beyond_the_tick_wait_on_the_lane_and_beyond_the_day_are_ended() {
    let w = World::new().await;
    let row = w.row(10, 12, DayCapAction::Reject);
    assert!(matches!(w.admit(row, &[w.turn("t1", 15)]).await[0], Admitted::Dispatched));
    let slice = w.lease("w1").await.remove(0);
    assert_eq!(slice.calls.len(), 10);
    assert_eq!(w.store.settle(&[settlement(&slice, 10)]).await.unwrap(), [Settled::Laned]);
    let now = w.store.now_ms().await.unwrap();
    assert!(w.store.due(now, 10).await.unwrap().lanes.is_empty(), "the window has not ended");
    w.advance(5_000);
    let lane = lane(&slice, LanePolicy::Row(0));
    assert_eq!(w.store.due(now + 5_000, 10).await.unwrap().lanes.len(), 1);
    let ReleaseReply::Released(r) = w.store.release(BY, 10, &[row], &[], std::slice::from_ref(&lane)).await.unwrap()
    else {
        panic!()
    };
    assert_eq!((r[0].turns, r[0].calls), (1, 2));
    let slice = w.lease("w1").await.remove(0);
    assert_eq!((slice.first, slice.calls.len()), (10, 2));
    assert_eq!(w.store.settle(&[settlement(&slice, 2)]).await.unwrap(), [Settled::Laned]);
    w.advance(5_000);
    let ReleaseReply::Released(r) = w.store.release(BY, 10, &[row], &[], &[lane]).await.unwrap() else { panic!() };
    let ending = &r[0].endings[0];
    assert_eq!((ending.reason, ending.first, ending.upto, ending.calls.len()), (EndReason::DailyCapReached, 12, 15, 3));
    let mut last = settlement(&slice, 3);
    (last.fence, last.queue, last.first) = (ending.fence.clone(), None, 12);
    last.calls.iter_mut().for_each(|c| c.result = "9".into());
    assert_eq!(w.store.settle(&[last]).await.unwrap(), [Settled::Done]);
    assert_eq!(w.replies().await, [r#"{"results":[0,1,2,3,4,5,6,7,8,9,10,11,9,9,9]}"#]);
}

/// The lane of the slice's agent.
fn lane(slice: &SliceEntry, policy: LanePolicy) -> LaneRelease {
    let agent = slice.meta.agent.clone();
    let turns = LaneTurns::Any(JudgedBy { agent: agent.to_string(), policy, stagger_ms: 0 });
    LaneRelease { lane: Lane::Agent(slice.name.tenant.clone(), agent), turns }
}

#[tokio::test]
async fn a_lane_whose_tenant_cannot_be_decided_about_rests_and_loses_nothing() {
    let w = World::new().await;
    let row = w.row(10, 100, DayCapAction::Reject);
    assert!(matches!(w.admit(row, &[w.turn("t1", 12)]).await[0], Admitted::Dispatched));
    let slice = w.lease("w1").await.remove(0);
    assert_eq!(w.store.settle(&[settlement(&slice, 10)]).await.unwrap(), [Settled::Laned]);
    w.advance(5_000);
    let release = async |policy| match w.store.release(BY, 10, &[row], &[], &[lane(&slice, policy)]).await.unwrap() {
        ReleaseReply::Released(mut released) => released.remove(0),
        other => panic!("{other:?}"),
    };
    let rests = release(LanePolicy::Withheld).await;
    assert_eq!((rests.calls, rests.endings.len()), (0, 0));
    let now = w.store.now_ms().await.unwrap();
    assert!(w.store.due(now, 10).await.unwrap().lanes.is_empty(), "it stands in nobody's way");
    w.advance(1_000);
    assert_eq!(w.store.due(now + 1_000, 10).await.unwrap().lanes.len(), 1);
    assert_eq!(release(LanePolicy::Row(0)).await.calls, 2);
}

#[tokio::test]
async fn a_retry_parks_the_slice_and_comes_back_with_its_progress() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 3)]).await;
    let slice = w.lease("w1").await.remove(0);
    assert_eq!(w.store.settle(&[settlement(&slice, 1)]).await.unwrap(), [Settled::Continue]);
    let begin = |nonce: &str| Begin {
        name: slice.name.clone(),
        fence: slice.fence.clone(),
        position: 1,
        nonce: Some(nonce.into()),
        digest: "d".into(),
        knows: None,
    };
    assert_eq!(
        w.store.begin(&[begin("a"), begin("a"), begin("b")]).await.unwrap(),
        [Begun::Ok, Begun::Ok, Begun::Unknown]
    );
    let retry = Retry {
        name: slice.name.clone(),
        fence: slice.fence.clone(),
        queue: slice.queue.clone(),
        position: 1,
        delay_ms: 1_000,
        attempt: 1,
        begun: false,
        beside: false,
        cause: "no answer, try later".into(),
    };
    assert_eq!(w.store.retry(std::slice::from_ref(&retry)).await.unwrap(), [Parked::Ok]);
    assert_eq!(w.store.retry(&[retry]).await.unwrap(), [Parked::Already]);
    w.advance(1_000);
    assert!(matches!(w.store.promote(std::slice::from_ref(&slice.name)).await.unwrap()[0], Promoted::Promoted));
    let again = w.lease("w2").await.remove(0);
    assert_eq!((again.first, again.calls.len(), again.attempt), (1, 2, 1));
    assert_eq!(w.store.settle(&[settlement(&slice, 3)]).await.unwrap(), [Settled::Stale]);
    assert_eq!(w.store.settle(&[settlement(&again, 2)]).await.unwrap(), [Settled::Done]);
    assert_eq!(w.replies().await.len(), 1);
}

#[tokio::test]
async fn a_dead_workers_slice_is_taken_back_and_quarantined_after_three_crashes() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 2)]).await;
    assert!(!w.store.reap(10).await.unwrap().active, "the first reap waits one lease");
    let mut last = None;
    for crash in 1..=3 {
        let slice = w.lease(&format!("w{crash}")).await.remove(0);
        assert_eq!(slice.crashes, crash - 1);
        assert_eq!(matches!(slice.queue, Queue::Suspect(_)), crash > 1, "suspects are in nobody's way");
        let (name, fence) = (slice.name.clone(), slice.fence.clone());
        let mark = Begin { name, fence, position: 0, nonce: None, digest: "d".into(), knows: None };
        assert_eq!(w.store.begin(&[mark]).await.unwrap(), [Begun::Ok]);
        let mut reaped = w.store.reap(10).await.unwrap();
        for _ in 0..3 {
            assert_eq!(reaped.requeued, 0);
            w.advance(4_000);
            reaped = w.store.reap(10).await.unwrap();
        }
        last = Some((slice, reaped));
    }
    let (slice, reaped) = last.unwrap();
    assert_eq!((reaped.endings.len(), reaped.endings[0].reason), (1, EndReason::Internal));
    let mut end = settlement(&slice, 2);
    (end.fence, end.queue) = (reaped.endings[0].fence.clone(), None);
    assert_eq!(w.store.settle(&[end]).await.unwrap(), [Settled::Done]);
    assert_eq!(w.store.settle(&[settlement(&slice, 2)]).await.unwrap(), [Settled::Stale]);
}

#[tokio::test]
async fn submitting_is_bounded_and_idempotent_and_rejecting_writes_one_reply() {
    let w = World::new().await;
    let submission = |id: Option<&str>, digest: &str| Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: id.map(|id| TurnId::new(id).unwrap()),
        digest: digest.into(),
        reply_to: None,
        payload: "{}".into(),
    };
    let batch = [submission(Some("a"), "1"), submission(Some("a"), "1"), submission(Some("a"), "2")];
    let answers = w.store.submit(&batch).await.unwrap();
    let Submitted::Accepted { entry } = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(answers[1..], [Submitted::Duplicate, Submitted::Conflict]);
    let five: Vec<_> = (0..5).map(|_| submission(None, "")).collect();
    assert_eq!(w.store.submit(&five).await.unwrap()[4], Submitted::QueueFull);
    assert_eq!(w.store.submit(&batch[..1]).await.unwrap(), [Submitted::Duplicate]);

    let consumer = ConsumerId::new("s1").unwrap();
    let mut reader = w.store.reader(&consumer, Duration::from_millis(10));
    assert_eq!(reader.wait(&["turns".into()], 100).await.unwrap().len(), 5);
    let to = (TenantId::new("acme").unwrap(), InboxName::new("box").unwrap());
    let rejection = Rejection {
        entry: entry.clone(),
        reason: "x".into(),
        raw: b"{}".to_vec(),
        reply_to: Some(to),
        absent: None,
        reply: "{}".into(),
        given: None,
    };
    assert_eq!(w.store.reject(Inbound::Turns, std::slice::from_ref(&rejection)).await.unwrap(), [true]);
    assert_eq!(w.store.reject(Inbound::Turns, &[rejection]).await.unwrap(), [false]);
    assert_eq!(w.replies().await.len(), 1);
}

#[tokio::test]
async fn what_one_tenant_has_waiting_takes_a_quarter_of_the_memory_at_most() {
    let w = World::new().await;
    let acme = TenantId::new("acme").unwrap();
    // As `weigh` writes it; a quarter is less than one turn has here.
    let mut set = redis::cmd("HSET");
    set.arg(w.store.keys().key("meta")).arg("memory_max").arg(400);
    let _: u64 = w.store.connection().query(Question::Look, &set).await.unwrap();
    let row = w.row(10, 100, DayCapAction::Reject);
    let found = w.admit(row, &[w.turn("a", 3)]).await;
    assert!(matches!(&found[..], [Admitted::Refused(code)] if code == "tenant_queue_full"), "{found:?}");
    let submission = Submission {
        tenant: acme.clone(),
        turn: None,
        digest: String::new(),
        reply_to: None,
        payload: "x".repeat(101),
    };
    assert_eq!(w.store.submit(&[submission]).await.unwrap(), [Submitted::QueueFull]);
    let inbox = InboxName::new("box").unwrap();
    let enqueued = w.store.enqueue_task(&"x".repeat(101), None, Some((&acme, &inbox))).await.unwrap();
    assert_eq!(enqueued, Enqueued::QueueFull);
}

#[tokio::test]
async fn tasks_that_wait_for_their_decision_are_bounded_in_bytes() {
    let w = World::with(StoreOptions { turns_bytes_max: 1 << 20, ..StoreOptions::default() }).await;
    let (acme, inbox) = (TenantId::new("acme").unwrap(), InboxName::new("box").unwrap());
    let message = "x".repeat(20_000);
    let mut accepted = 0;
    while w.store.enqueue_task(&message, None, Some((&acme, &inbox))).await.unwrap() != Enqueued::QueueFull {
        accepted += 1;
        assert!(accepted < 100, "the stream takes any number of bytes");
    }
    assert!(accepted >= 64, "few may have any size: {accepted}");
}

#[tokio::test]
async fn handing_back_keeps_the_slice_for_another() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 2)]).await;
    let slice = w.lease("w1").await.remove(0);
    let back = HandBack {
        name: slice.name.clone(),
        fence: slice.fence.clone(),
        queue: slice.queue.clone(),
        why: Returned::Unsent,
    };
    assert_eq!(w.store.hand_back(std::slice::from_ref(&back)).await.unwrap(), 1);
    assert_eq!(w.store.hand_back(&[back]).await.unwrap(), 0);
    let again = w.lease("w2").await.remove(0);
    assert_eq!(again.crashes, 0);
    assert_eq!(w.store.backlog(&[], &[]).await.unwrap().running, 1);
}

#[tokio::test]
async fn only_what_was_met_in_the_data_is_the_fault_of_a_batch() {
    let server = RedisServer::start().await;
    let store = Store::open(&server.url(), 0, Arc::new(StoreOptions::default())).unwrap();
    let mut redis = server.connection().await;
    let consumer = ConsumerId::new("w").unwrap();
    let told = async |redis: &mut redis::aio::MultiplexedConnection, setup: &[&str]| {
        let () = redis::cmd(setup[0]).arg(&setup[1..]).query_async(redis).await.unwrap();
        let error = store.beat(&consumer).await.unwrap_err();
        (error.is_script_error(), error.to_string())
    };
    let acl = |rules: &[&'static str]| [&["ACL", "SETUSER", "default"], rules].concat();
    // The connection's, or that of the server behind it: whoever waits, waits.
    for (setup, mended) in [
        (acl(&["-evalsha"]), acl(&["+evalsha"])),
        (acl(&["-hset"]), acl(&["+hset"])),
        (vec!["REPLICAOF", "127.0.0.1", "1"], vec!["REPLICAOF", "NO", "ONE"]),
    ] {
        let (script, said) = told(&mut redis, &setup).await;
        assert!(!script, "{setup:?}: {said}");
        let () = redis::cmd(mended[0]).arg(&mended[1..]).query_async(&mut redis).await.unwrap();
        store.beat(&consumer).await.unwrap();
    }
    // The data's: it would fail for ever.
    let beats = store.keys().key("beats");
    let () = redis::cmd("DEL").arg(&beats).query_async(&mut redis).await.unwrap();
    let (script, said) = told(&mut redis, &["SET", &beats, "foreign"]).await;
    assert!(script, "{said}");
    // So it is where it is read without a script: the record of a task that a turn runs under.
    let task = TurnName::parse("acme:k1").unwrap();
    let () = redis::cmd("SET").arg(store.keys().turn(&task)).arg("foreign").query_async(&mut redis).await.unwrap();
    assert!(store.task_grant(&task).await.unwrap_err().is_script_error());
}

#[tokio::test]
async fn admissions_of_ended_turns_are_counted_wherever_the_range_cuts_their_reply() {
    let world = World::new().await;
    let mut redis = world._server.connection().await;
    let names = [0, 1].map(|bytes| (TurnName::parse(&format!("acme:t{bytes}")).unwrap(), bytes));
    for (name, bytes) in &names {
        // In one of the two, a character of two bytes lies across the end of what is read.
        let record = format!("ts=1 end=2 lg=A1,3,3,10,9,3,100;\n{}{}", "x".repeat(*bytes), "é".repeat(300));
        let key = world.store.keys().done(name);
        let () = redis::cmd("SET").arg(key).arg(record).query_async(&mut redis).await.unwrap();
    }
    let names = names.map(|(name, _)| name);
    assert_eq!(world.store.admitted_first(&names).await.unwrap(), 6);
}
