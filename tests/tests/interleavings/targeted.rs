//! What random steps cannot reach: a full memory, outside runtimes, and reaping in small bites.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tickfleet_model::{AgentId, Caps, ConsumerId, DayCapAction, Priority, TaskId, TenantId, TurnId, limits};
use tickfleet_store::{
    Admission, AdmitReply, Admitted, Begin, Begun, Cancelled, Delegated, Delegation, EndReason, Entry, Generations,
    HandBack, Inbound, Parked, PolicyRow, Promoted, Queue, Reader, Rejection, ReplyFrame, Retry, Returned, Scripts,
    Settled, SettledCall, Settlement, Store, StoreOptions, Submission, TimeSource, Touched, TurnName,
};
use tickfleet_testkit::{RedisOptions, RedisServer};

mod alone;
mod aside;
mod bounds;
mod budgets;
mod cascades;
mod effects;
mod external;
mod facts;
mod followers;
mod given_back;
mod governed;
mod inbound;
mod kept;
mod places;
mod rests;
mod returned;
mod waits;

pub(super) const START_MS: i64 = 1_767_571_200_000;

/// Caps that hold nothing up, of a day that has just begun.
pub(super) fn row() -> PolicyRow {
    let caps = Caps {
        tick_ms: 5_000,
        calls_per_tick: 10,
        calls_per_day: 100,
        tenant_calls_per_day: None,
        on_day_cap: DayCapAction::Reject,
    };
    PolicyRow { caps, day_start_ms: START_MS, day_end_ms: START_MS + 86_400_000 }
}

pub(super) struct Shard {
    pub(super) server: RedisServer,
    pub(super) store: Store,
    clock: Arc<AtomicI64>,
}

impl Shard {
    pub(super) async fn new(options: RedisOptions, scripts: Scripts) -> Self {
        let server = RedisServer::start_with(options).await;
        let clock = Arc::new(AtomicI64::new(START_MS));
        let store = Store::open(&server.url(), 0, Arc::new(StoreOptions::default())).unwrap();
        let store = store.with_time(TimeSource::Injected(clock.clone())).with_scripts(scripts);
        store.ensure_groups().await.unwrap();
        store.announce("policy", None, false).await.unwrap();
        Self { server, store, clock }
    }

    pub(super) fn advance(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    pub(super) fn reader(&self, consumer: &str) -> Reader {
        self.store.reader(&ConsumerId::new(consumer).unwrap(), Duration::from_millis(10))
    }

    pub(super) async fn beat(&self, consumer: &str) {
        self.store.beat(&ConsumerId::new(consumer).unwrap()).await.unwrap();
    }

    /// Submits turns of two calls, and answers the admissions that a scheduler that has read them would send.
    pub(super) async fn inbound(&self, turns: usize) -> Vec<Admission> {
        let submission = |i: usize| Submission {
            tenant: TenantId::new("acme").unwrap(),
            turn: TurnId::new(format!("t{i}")).ok(),
            digest: "d".into(),
            reply_to: None,
            payload: "{}".into(),
        };
        let batch: Vec<_> = (0..turns).map(submission).collect();
        self.store.submit(&batch).await.unwrap();
        self.beat("s").await;
        let entries = self.reader("s").take("turns", turns).await.unwrap();
        let admission = |(i, entry): (usize, Entry)| Admission {
            entry: entry.id,
            tenant: TenantId::new("acme").unwrap(),
            agent: AgentId::new(format!("a{i}")).unwrap(),
            turn: TurnId::new(format!("t{i}")).unwrap(),
            given: true,
            digest: "d".into(),
            policy: 0,
            priority: Priority::Normal,
            deadline_ms: START_MS + 3_600_000,
            stagger_ms: 0,
            reply_to: None,
            task: None,
            meta: "m".into(),
            calls: vec!["c0".into(), "c1".into()],
            counters: Vec::new(),
        };
        entries.into_iter().enumerate().map(admission).collect()
    }

    pub(super) async fn admit(&self, turns: &[Admission]) -> Result<AdmitReply, tickfleet_store::StoreError> {
        self.store.admit(Generations { policy: 1, tenants: 0 }, &[row()], &[], turns).await
    }

    /// Admits turns and has `w` read their slices.
    pub(super) async fn leased(&self, turns: usize) -> Vec<(TurnName, String)> {
        let batch = self.inbound(turns).await;
        self.admit(&batch).await.unwrap();
        self.beat("w").await;
        let entries = self.reader("w").take("ready:normal", turns).await.unwrap();
        let text = |e: &Entry| String::from_utf8_lossy(e.field("t").unwrap_or_default()).into_owned();
        entries.iter().map(|e| (TurnName::parse(&text(e)).unwrap(), e.id.clone())).collect()
    }

    pub(super) async fn settle(
        &self,
        slice: &(TurnName, String),
        results: usize,
    ) -> Result<Vec<Settled>, tickfleet_store::StoreError> {
        let settlement = Settlement {
            name: slice.0.clone(),
            fence: slice.1.clone(),
            queue: Some(Queue::Ready(Priority::Normal)),
            first: 0,
            reply_to: None,
            frame: ReplyFrame { head: r#"{"results":["#.into(), ..ReplyFrame::default() },
            calls: vec![SettledCall { result: "1".into(), ..SettledCall::default() }; results],
        };
        self.store.settle(&[settlement]).await
    }

    /// The server may have so many percent of what it uses.
    async fn bound_memory(&self, percent: u64) {
        let mut redis = self.server.connection().await;
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut redis).await.unwrap();
        let used: u64 = info.lines().find_map(|l| l.strip_prefix("used_memory:")?.trim().parse().ok()).unwrap();
        let max = used / 100 * percent;
        let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(max).query_async(&mut redis).await.unwrap();
    }

    /// Nothing more fits into the server's memory.
    async fn fill_memory(&self) {
        let mut redis = self.server.connection().await;
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut redis).await.unwrap();
        let used = info.lines().find_map(|l| l.strip_prefix("used_memory:")).unwrap();
        let () =
            redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(used.trim()).query_async(&mut redis).await.unwrap();
    }
}

async fn promote(shard: &Shard, name: &TurnName) -> Promoted {
    shard.store.promote(std::slice::from_ref(name)).await.unwrap().remove(0)
}

#[tokio::test]
async fn what_is_in_can_be_finished_when_memory_is_full_and_nothing_new_comes_in() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let slices = shard.leased(3).await;
    let more = shard.inbound(4).await;
    shard.fill_memory().await;

    shard.beat("w").await;
    assert!(!shard.store.reap(10).await.unwrap().active, "it waits a lease first");
    assert_eq!(shard.settle(&slices[0], 2).await.unwrap(), [Settled::Done]);
    assert_eq!(shard.settle(&slices[1], 1).await.unwrap(), [Settled::Continue]);
    let queue = Queue::Ready(Priority::Normal);
    let (name, fence) = (slices[2].0.clone(), slices[2].1.clone());
    let retry = Retry {
        name,
        fence,
        queue,
        position: 0,
        delay_ms: 10,
        attempt: 1,
        beside: false,
        begun: false,
        cause: "full".into(),
    };
    shard.store.retry(&[retry]).await.unwrap();
    shard.store.cancel(&slices[2].0, "why").await.unwrap();
    assert!(matches!(shard.admit(&more).await.unwrap(), AdmitReply::Decided { .. }), "what is in drains");
    assert!(shard.store.submit(&[]).await.is_err(), "nothing is submitted");
}

#[tokio::test]
async fn without_its_flag_a_settle_fails_when_memory_is_full() {
    let scripts = Scripts::embedded().sabotage("#!lua flags=allow-oom\n", "#!lua\n").unwrap();
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let slices = shard.leased(1).await;
    shard.fill_memory().await;
    assert!(shard.settle(&slices[0], 2).await.is_err());
}

/// Reaps one entry at a time until the hold is over and nothing is left.
async fn reap_in_small_bites(shard: &Shard) -> u64 {
    let mut requeued = 0;
    for _ in 0..12 {
        shard.advance(4_000);
        requeued += shard.store.reap(1).await.unwrap().requeued;
    }
    requeued
}

/// A slice of a dead worker is back on its queue, and its old entry is kept by an older one of a living worker: the
/// dead one hands the old entry back.
async fn hand_back_a_stale_slice(scripts: Scripts) -> usize {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let batch = shard.inbound(2).await;
    shard.admit(&batch).await.unwrap();
    for worker in ["living", "dead"] {
        shard.beat(worker).await;
    }
    shard.reader("living").take("ready:normal", 1).await.unwrap();
    let entry = shard.reader("dead").take("ready:normal", 1).await.unwrap().remove(0);
    for _ in 0..6 {
        shard.advance(4_000);
        shard.beat("living").await;
        shard.store.reap(10).await.unwrap();
    }
    let text = String::from_utf8_lossy(entry.field("t").unwrap()).into_owned();
    let queue = Queue::Ready(Priority::Normal);
    let back = HandBack { name: TurnName::parse(&text).unwrap(), fence: entry.id, queue, why: Returned::Unsent };
    shard.store.hand_back(&[back]).await.unwrap()
}

#[tokio::test]
async fn a_slice_is_handed_back_by_its_holder_only() {
    assert_eq!(hand_back_a_stale_slice(Scripts::embedded()).await, 0);
    let guard = "if in_force ~= fence then return 'STALE' end\n  if num(why)";
    let sabotage = Scripts::embedded().sabotage(guard, "if num(why)").unwrap();
    assert_eq!(hand_back_a_stale_slice(sabotage).await, 1, "the slice would be out twice");
}

#[tokio::test]
async fn a_dead_consumer_is_removed_only_when_all_it_held_is_taken_back() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    shard.leased(3).await;
    assert_eq!(reap_in_small_bites(&shard).await, 3);

    let sabotage = Scripts::embedded().sabotage("if held == 0 then", "if true then").unwrap();
    let shard = Shard::new(RedisOptions::default(), sabotage).await;
    shard.leased(3).await;
    assert_eq!(reap_in_small_bites(&shard).await, 1, "its other entries go with the consumer");
}

#[tokio::test]
async fn a_slice_that_nobody_has_read_is_taken_back_by_its_cancel() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let batch = shard.inbound(1).await;
    shard.admit(&batch).await.unwrap();
    let name = TurnName::parse("acme:t0").unwrap();
    assert_eq!(shard.store.cancel(&name, "why").await.unwrap(), Cancelled::Ok);
    shard.beat("w").await;
    assert!(shard.reader("w").take("ready:normal", 1).await.unwrap().is_empty(), "a worker would run it");
    let Promoted::Ending(ending) = promote(&shard, &name).await else { panic!("nobody ends it") };
    assert_eq!((ending.reason, ending.first, ending.upto), (EndReason::Cancelled, 0, 2));
    assert_eq!((ending.why.as_deref(), ending.begun, ending.tries, ending.crashes), (Some("why"), None, 0, 0));
    assert_eq!(shard.store.cancel(&name, "again").await.unwrap(), Cancelled::Ok);
}

#[tokio::test]
async fn cancels_of_what_never_comes_are_bounded_by_tenant_and_time() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let name = |tenant: &str, i: usize| TurnName::parse(&format!("{tenant}:never-{i}")).unwrap();
    let long = "ü".repeat(10_000);
    for i in 0..limits::EARLY_CANCELS_MAX {
        assert_eq!(shard.store.cancel(&name("acme", i), &long).await.unwrap(), Cancelled::Waiting);
    }
    assert_eq!(shard.store.cancel(&name("acme", limits::EARLY_CANCELS_MAX), "why").await.unwrap(), Cancelled::Full);
    assert_eq!(shard.store.cancel(&name("acme", 0), "again").await.unwrap(), Cancelled::Waiting, "it has its place");
    assert_eq!(shard.store.cancel(&name("bolt", 0), "why").await.unwrap(), Cancelled::Waiting, "another tenant's");
    let mut redis = shard.server.connection().await;
    let mark = shard.store.keys().key("early:acme:never-1");
    let (length, ttl): (usize, i64) =
        redis::pipe().cmd("STRLEN").arg(&mark).cmd("PTTL").arg(&mark).query_async(&mut redis).await.unwrap();
    assert_eq!(length, limits::CANCEL_REASON_BYTES_MAX, "cut between characters");
    assert!(ttl > 0 && ttl <= limits::EARLY_CANCEL_MS, "{ttl}");
    // With time, the places are free again.
    shard.advance(limits::EARLY_CANCEL_MS + 1);
    assert_eq!(shard.store.cancel(&name("acme", 5_000), "why").await.unwrap(), Cancelled::Waiting);
    let marks: u64 =
        redis::cmd("ZCARD").arg(shard.store.keys().key("early:acme")).query_async(&mut redis).await.unwrap();
    assert_eq!(marks, 1);
}

/// A task for the workers, which nobody waits for.
fn task(id: &str) -> Delegation {
    Delegation {
        entry: None,
        tenant: TenantId::new("acme").unwrap(),
        task: TaskId::new(id).unwrap(),
        given: false,
        digest: "d".into(),
        queue: Queue::Ready(Priority::Normal),
        agent: AgentId::new("kelly").unwrap(),
        deadline_ms: START_MS + 3_600_000,
        budget: 1,
        by: None,
        awaited: false,
        parent: None,
        reply_to: None,
        meta: "m".into(),
        call: "c0".into(),
        external_lease_ms: 0,
    }
}

#[tokio::test]
async fn a_scheduler_that_slept_does_not_delegate_a_second_time() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut redis = shard.server.connection().await;
    let mut command = redis::cmd("XADD");
    command.arg(shard.store.keys().key("tasks")).arg("*").arg("task").arg("{}");
    let entry: String = command.query_async(&mut redis).await.unwrap();
    shard.beat("s").await;
    shard.reader("s").take("tasks", 1).await.unwrap();
    // It sleeps; others take the entry back, carry the task out, and forget it.
    for _ in 0..5 {
        shard.advance(4_000);
        shard.beat("s2").await;
        shard.store.reap(10).await.unwrap();
    }
    let delegation = Delegation { entry: Some(entry), ..task("k1-0") };
    assert_eq!(shard.store.delegate(&[delegation]).await.unwrap(), [Delegated::Duplicate]);
    assert!(shard.reader("w").take("ready:normal", 1).await.unwrap().is_empty(), "it would run a second time");
}

#[tokio::test]
async fn a_call_that_was_begun_is_named_where_its_slice_is_quarantined() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut slice = shard.leased(1).await.remove(0);
    let begin = |slice: &(TurnName, String), nonce: Option<&str>| Begin {
        name: slice.0.clone(),
        fence: slice.1.clone(),
        position: 0,
        nonce: nonce.map(str::to_owned),
        digest: "d".into(),
        knows: None,
    };
    assert_eq!(shard.store.begin(&[begin(&slice, Some("n"))]).await.unwrap(), [Begun::Ok]);
    let mut endings = Vec::new();
    for crash in 0..3 {
        for _ in 0..5 {
            shard.advance(4_000);
            endings.extend(shard.store.reap(10).await.unwrap().endings);
        }
        let worker = format!("w{crash}");
        shard.beat(&worker).await;
        for entry in shard.reader(&worker).take("ready:suspect:normal", 1).await.unwrap() {
            slice.1 = entry.id;
            assert_eq!(shard.store.begin(&[begin(&slice, None)]).await.unwrap(), [Begun::Ok]);
        }
    }
    let told: Vec<_> = endings.iter().map(|e| (e.reason, e.begun.map(|begun| begun.position), e.crashes)).collect();
    assert_eq!(told, [(EndReason::Internal, Some(0), 3)]);
}

#[tokio::test]
async fn nobody_is_reaped_because_the_heartbeats_were_deleted() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    shard.leased(1).await;
    let living = async || {
        for _ in 0..4 {
            shard.advance(4_000);
            shard.beat("w").await;
            shard.store.reap(10).await.unwrap();
        }
        shard.store.reap(10).await.unwrap().active
    };
    assert!(living().await);
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("DEL").arg(shard.store.keys().key("beats")).query_async(&mut redis).await.unwrap();
    // A scheduler beats before the worker does.
    shard.beat("s").await;
    let reaped = shard.store.reap(10).await.unwrap();
    assert_eq!((reaped.active, reaped.requeued), (false, 0));
    assert!(living().await, "it goes on after a lease");
}

#[tokio::test]
async fn every_script_that_drains_may_run_when_memory_is_full() {
    let mut flags: HashMap<&str, Vec<bool>> = HashMap::new();
    for (verb, text) in Scripts::embedded().iter() {
        flags.entry(verb).or_default().push(text.starts_with("#!lua flags=allow-oom"));
    }
    let whenever = [
        "seal",
        "checkpoint",
        "notices",
        "settle",
        "beat",
        "reap",
        "retry",
        "rest",
        "hand_back",
        "cancel",
        "touch",
        "step",
        "reserve",
        "begin",
        "enter",
        "restate",
        "reject",
        "announce",
    ];
    let operators = [
        "set_tenant",
        "switch_tool",
        "pause",
        "drain",
        "note_act",
        "drop_dead",
        "reset_limit",
        "repair",
        "decide_approval",
    ];
    for verb in operators {
        assert_eq!(flags[verb], [true], "{verb}: who mends a full fleet is not refused");
    }
    for verb in whenever.into_iter().chain(["weigh", "ensure_groups", "put_back", "wake", "suspect", "put_aside"]) {
        assert_eq!(flags[verb], [true], "{verb} frees memory, or keeps what is in alive");
    }
    for verb in ["admit", "release", "promote", "delegate"] {
        assert_eq!(flags[verb], [false, true], "{verb} drains, and is bounded where memory is full");
    }
    for verb in ["drop_documents", "forget"] {
        assert_eq!(flags[verb], [true], "{verb} makes room");
    }
    for verb in ["lookup", "brake", "count_repeat"] {
        assert_eq!(flags[verb], [true], "{verb}: calls that are under way go on");
    }
    for verb in ["wait", "ask_approval", "use_approval", "step", "hear", "say"] {
        assert_eq!(flags[verb], [true], "{verb}: tasks that are under way go on to their answers");
    }
    for verb in ["submit", "replay", "roll_up", "tell", "keep_document", "remember", "fill"] {
        assert_eq!(flags[verb], [false], "{verb} takes in what is new");
    }
}
