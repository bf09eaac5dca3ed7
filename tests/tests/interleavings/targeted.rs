//! What random steps cannot reach: a full memory, outside runtimes, and reaping in small bites.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tickfleet_model::{AgentId, Caps, ConsumerId, DayCapAction, Priority, TaskId, TenantId, TurnId, limits};
use tickfleet_store::{
    Admission, AdmitReply, Admitted, Begin, Begun, Cancelled, Delegated, Delegation, EndReason, Entry, Generations,
    HandBack, Inbound, PolicyRow, Promoted, Queue, Reader, Rejection, ReplyFrame, Retry, Returned, Scripts, Settled,
    SettledCall, Settlement, Store, StoreOptions, Submission, TimeSource, Touched, TurnName,
};
use tickfleet_testkit::{RedisOptions, RedisServer};

mod bounds;
mod returned;

pub(super) const START_MS: i64 = 1_767_571_200_000;

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
        };
        entries.into_iter().enumerate().map(admission).collect()
    }

    pub(super) async fn admit(&self, turns: &[Admission]) -> Result<AdmitReply, tickfleet_store::StoreError> {
        let caps = Caps {
            tick_ms: 5_000,
            calls_per_tick: 10,
            calls_per_day: 100,
            tenant_calls_per_day: None,
            on_day_cap: DayCapAction::Reject,
        };
        let row = PolicyRow { caps, day_start_ms: START_MS, day_end_ms: START_MS + 86_400_000 };
        self.store.admit(Generations { policy: 1, tenants: 0 }, &[row], turns).await
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
    let retry = Retry { name, fence, queue, position: 0, delay_ms: 10, attempt: 1, cause: "full".into() };
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

#[tokio::test]
async fn of_a_message_that_kills_whoever_reads_it_the_ids_are_kept_and_nothing_else() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let raw =
        r#"{"turn_id":"t-1", "tenant" : "acme","agent":"kel\"ly","calls":[{"name":"x","arguments":{"pin":4711}}]}"#;
    let mut redis = shard.server.connection().await;
    let add = redis::cmd("XADD").arg(shard.store.keys().key("turns")).arg(&["*", "turn", raw]).to_owned();
    let () = add.query_async(&mut redis).await.unwrap();
    for n in 1..=3 {
        let name = format!("s{n}");
        shard.beat(&name).await;
        let entry = shard.reader(&name).take("turns", 1).await.unwrap().remove(0);
        shard.store.suspect(Inbound::Turns, &ConsumerId::new(&name).unwrap(), Some(&entry.id)).await.unwrap();
        for _ in 0..6 {
            shard.advance(4_000);
            shard.store.reap(10).await.unwrap();
        }
    }
    let dead = redis::cmd("XRANGE").arg(shard.store.keys().key("dead")).arg(&["-", "+"]).to_owned();
    let dead: Vec<(String, HashMap<String, String>)> = dead.query_async(&mut redis).await.unwrap();
    let expected = format!(r#"{{"turn_id":"t-1","tenant":"acme","unread_bytes":{}}}"#, raw.len());
    assert_eq!(dead.iter().map(|(_, letter)| letter["raw"].as_str()).collect::<Vec<_>>(), [expected]);
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

/// A task of an outside runtime with a lease of 5 s and a deadline in 60 s.
async fn external(shard: &Shard) -> (TurnName, Queue) {
    let (tenant, agent) = (TenantId::new("acme").unwrap(), AgentId::new("far").unwrap());
    let (task, queue) = (TaskId::new("k1").unwrap(), Queue::External(tenant.clone(), agent.clone()));
    let delegation = Delegation {
        entry: None,
        tenant: tenant.clone(),
        task: task.clone(),
        given: true,
        digest: "d".into(),
        queue: queue.clone(),
        agent,
        deadline_ms: START_MS + 60_000,
        budget: 3,
        parent: None,
        meta: "m".into(),
        call: "c0".into(),
        reply_to: None,
        external_lease_ms: 5_000,
    };
    assert_eq!(shard.store.delegate(&[delegation]).await.unwrap(), [Delegated::Ok]);
    (TurnName::task(&tenant, &task), queue)
}

/// Redis reckons idle times by its own clock: it is told that the entry has been held for so long.
async fn idle(shard: &Shard, queue: &Queue, entry: &str, ms: i64) {
    let mut redis = shard.server.connection().await;
    let mut command = redis::cmd("XCLAIM");
    command
        .arg(shard.store.keys().key(queue))
        .arg("workers")
        .arg("far")
        .arg(0)
        .arg(entry)
        .arg("IDLE")
        .arg(ms)
        .arg("JUSTID");
    let _: Vec<String> = command.query_async(&mut redis).await.unwrap();
}

async fn promote(shard: &Shard, name: &TurnName) -> Promoted {
    shard.store.promote(std::slice::from_ref(name)).await.unwrap().remove(0)
}

#[tokio::test]
async fn an_external_task_whose_runtime_is_silent_is_offered_anew_and_ended_in_the_end() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (name, queue) = external(&shard).await;
    let mut reader = shard.reader("far");
    let first = reader.take(&queue.to_string(), 1).await.unwrap().remove(0);
    idle(&shard, &queue, &first.id, 6_000).await;
    shard.advance(6_000);
    assert!(matches!(promote(&shard, &name).await, Promoted::Lapsed), "it is offered anew");
    assert_eq!(shard.store.touch(&name, &first.id).await.unwrap(), Touched::Stale);
    let second = reader.take(&queue.to_string(), 1).await.unwrap().remove(0);
    assert_eq!(shard.store.touch(&name, &second.id).await.unwrap(), Touched::Ok);

    shard.advance(60_000);
    assert_eq!(shard.store.touch(&name, &second.id).await.unwrap(), Touched::Cancelled, "the deadline has come");
    idle(&shard, &queue, &second.id, 60_000).await;
    let Promoted::Ending(ending) = promote(&shard, &name).await else { panic!("it goes on for ever") };
    assert_eq!((ending.reason, ending.first, ending.upto), (EndReason::Expired, 0, 1));
    assert_eq!((ending.calls, ending.begun.map(|begun| begun.by_runtime)), (vec!["c0".to_owned()], Some(true)));
}

#[tokio::test]
async fn a_cancelled_external_task_ends_once_its_runtime_has_had_its_lease() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (name, queue) = external(&shard).await;
    let entry = shard.reader("far").take(&queue.to_string(), 1).await.unwrap().remove(0);
    shard.store.cancel(&name, "why").await.unwrap();
    assert_eq!(shard.store.touch(&name, &entry.id).await.unwrap(), Touched::Cancelled);
    assert!(matches!(promote(&shard, &name).await, Promoted::Later), "its holder may end it itself");
    idle(&shard, &queue, &entry.id, 6_000).await;
    shard.advance(6_000);
    let Promoted::Ending(ending) = promote(&shard, &name).await else { panic!("it goes on for ever") };
    assert_eq!((ending.reason, ending.why.as_deref()), (EndReason::Cancelled, Some("why")));
    assert!(ending.begun.is_some_and(|begun| begun.by_runtime), "what its runtime did is not known: {ending:?}");
}

#[tokio::test]
async fn an_inbound_entry_that_reap_put_back_is_admitted_once_even_after_its_record_has_gone() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let stale = shard.inbound(1).await;
    for _ in 0..5 {
        shard.advance(4_000);
        shard.beat("s2").await;
        shard.store.reap(10).await.unwrap();
    }
    let again = shard.reader("s2").take("turns", 1).await.unwrap().remove(0);
    let admission = Admission { entry: again.id, ..stale[0].clone() };
    shard.admit(&[admission]).await.unwrap();
    shard.beat("w").await;
    let slice = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    let name = TurnName::parse("acme:t0").unwrap();
    assert_eq!(shard.settle(&(name.clone(), slice.id), 2).await.unwrap(), [Settled::Done]);
    let mut redis = shard.server.connection().await;
    let keys = [shard.store.keys().done(&name), shard.store.keys().key(format!("id:{name}"))];
    let () = redis::cmd("DEL").arg(&keys).query_async(&mut redis).await.unwrap();

    shard.admit(&stale).await.unwrap();
    assert!(shard.reader("w").take("ready:normal", 1).await.unwrap().is_empty(), "it would run a second time");
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

#[tokio::test]
async fn a_forged_id_on_a_message_that_cannot_be_read_does_not_drop_the_turn_of_another() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut redis = shard.server.connection().await;
    let forge = async |redis: &mut redis::aio::MultiplexedConnection| -> String {
        let mut command = redis::cmd("XADD");
        command.arg(shard.store.keys().key("turns")).arg("*").arg("turn").arg("{").arg("i").arg("acme:t0");
        command.query_async(redis).await.unwrap()
    };
    let entry = forge(&mut redis).await;
    let batch = shard.inbound(2).await;
    let rejection = |entry: String, given: Option<&str>| Rejection {
        entry,
        reason: "malformed_json".into(),
        raw: b"{".to_vec(),
        reply_to: None,
        reply: String::new(),
        given: given.map(|digest| (TurnName::parse("acme:t0").unwrap(), digest.to_owned())),
    };
    // The forger's own entry, and one that names the same id with content of its own.
    shard.store.reject(Inbound::Turns, &[rejection(entry, None)]).await.unwrap();
    let entry = forge(&mut redis).await;
    shard.reader("s").take("turns", 2).await.unwrap();
    shard.store.reject(Inbound::Turns, &[rejection(entry, Some("other"))]).await.unwrap();
    let victim = Admission { entry: batch[1].entry.clone(), ..batch[0].clone() };
    let AdmitReply::Decided { turns, .. } = shard.admit(&[victim]).await.unwrap() else { panic!("not decided") };
    assert!(matches!(turns[0], Admitted::Dispatched), "{turns:?}");
    let ttl: i64 = redis::cmd("PTTL").arg(shard.store.keys().key("id:acme:t0")).query_async(&mut redis).await.unwrap();
    assert_eq!(ttl, -1, "what is admitted is remembered until it has ended");
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
async fn each_inbound_stream_has_a_mark_of_its_own_for_what_is_read_alone() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let turns = shard.inbound(1).await;
    let scheduler = ConsumerId::new("s").unwrap();
    shard.store.suspect(Inbound::Turns, &scheduler, Some(&turns[0].entry)).await.unwrap();
    shard.store.suspect(Inbound::Tasks, &scheduler, None).await.unwrap();
    let mut redis = shard.server.connection().await;
    let marks: HashMap<String, String> =
        redis::cmd("HGETALL").arg(shard.store.keys().key("suspects")).query_async(&mut redis).await.unwrap();
    assert_eq!(marks, HashMap::from([("turns s".to_owned(), turns[0].entry.clone())]));
}

#[tokio::test]
async fn every_script_that_drains_may_run_when_memory_is_full() {
    let mut flags: HashMap<&str, Vec<bool>> = HashMap::new();
    for (verb, text) in Scripts::embedded().iter() {
        flags.entry(verb).or_default().push(text.starts_with("#!lua flags=allow-oom"));
    }
    let whenever = ["settle", "beat", "reap", "retry", "hand_back", "cancel", "touch", "begin", "reject", "announce"];
    for verb in whenever.into_iter().chain(["weigh", "ensure_groups", "put_back", "wake", "suspect", "put_aside"]) {
        assert_eq!(flags[verb], [true], "{verb} frees memory, or keeps what is in alive");
    }
    for verb in ["admit", "release", "promote", "delegate"] {
        assert_eq!(flags[verb], [false, true], "{verb} drains, and is bounded where memory is full");
    }
    assert_eq!(flags["submit"], [false], "it takes new work in");
}
