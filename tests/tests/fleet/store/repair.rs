//! What does not agree in a shard: what is told of it, and what is mended.

use tickfleet_model::TaskId;
use tickfleet_store::{Claimed, Delegated, Delegation, EffectClaim, EffectName, Fault, Reader, Repaired};

use super::*;

/// An audit entry as whoever has a shard mended writes it: two objects are open.
const ENTRY: &str = r#"{"action":"REPAIR","meta":{"shard":0"#;

impl World {
    /// A command on a key, which is its second word, or the third of `XGROUP`.
    async fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(self.store.keys().key(words[1])).arg(&words[2..]);
        self.store.connection().query(Question::Look, &command).await.unwrap()
    }

    async fn repaired(&self) -> Repaired {
        self.store.faults(Some(ENTRY)).await.unwrap()
    }

    /// What is wrong, each with what has it and whether it was mended.
    async fn mended(&self) -> Vec<(Fault, String, bool)> {
        self.repaired().await.found.into_iter().map(|found| (found.fault, found.item, found.mended)).collect()
    }

    /// A task that waits for a runtime outside.
    async fn delegated(&self, task: &str) -> Delegation {
        let (tenant, agent) = (TenantId::new("acme").unwrap(), AgentId::new("far").unwrap());
        let delegation = Delegation {
            entry: None,
            queue: Queue::External(tenant.clone(), agent.clone()),
            tenant,
            task: TaskId::new(task).unwrap(),
            given: true,
            digest: "d".into(),
            agent,
            deadline_ms: self.clock.load(Ordering::SeqCst) + 60_000,
            budget: 3,
            by: None,
            awaited: false,
            parent: None,
            meta: "m".into(),
            call: "c0".into(),
            reply_to: None,
            external_lease_ms: 5_000,
        };
        assert_eq!(self.store.delegate(std::slice::from_ref(&delegation)).await.unwrap(), [Delegated::Ok]);
        delegation
    }

    fn runtime(&self) -> Reader {
        self.store.reader(&ConsumerId::new("far").unwrap(), Duration::from_millis(10))
    }
}

fn found(fault: Fault, item: &str, mended: bool) -> (Fault, String, bool) {
    (fault, item.to_owned(), mended)
}

fn name(text: &str) -> TurnName {
    TurnName::parse(text).unwrap()
}

#[tokio::test]
async fn bytes_that_no_turn_has_are_found_and_mended() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("a", 3)]).await;
    let bytes = async || w.redis::<i64>(&["HGET", "tenant:acme", "by"]).await;
    let counted = bytes().await;
    assert!(counted > 0 && w.mended().await.is_empty());
    w.redis::<i64>(&["HINCRBY", "tenant:acme", "by", "1000"]).await;
    let found = w.store.faults(None).await.unwrap().found;
    assert_eq!(
        found.iter().map(|found| (found.fault, found.mended)).collect::<Vec<_>>(),
        [(Fault::TenantMiscounted, false)]
    );
    let more = &found[0].more;
    assert!(more.contains(&format!("bytes {}, counted {counted}", counted + 1_000)), "{more}");
    assert_eq!(w.mended().await, [self::found(Fault::TenantMiscounted, "acme", true)]);
    assert_eq!((bytes().await, w.mended().await), (counted, Vec::new()));
}

#[tokio::test]
async fn an_id_whose_message_is_gone_is_free_after_the_mend() {
    let w = World::new().await;
    let submission = Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: Some(TurnId::new("t1").unwrap()),
        digest: "1".into(),
        reply_to: None,
        payload: "{}".into(),
    };
    let submit = async || w.store.submit(std::slice::from_ref(&submission)).await.unwrap().remove(0);
    let Submitted::Accepted { entry } = submit().await else { panic!("a new id is refused") };
    assert_eq!(w.mended().await, []);
    assert_eq!(submit().await, Submitted::Duplicate);
    assert_eq!(w.redis::<u64>(&["XDEL", "turns", &entry]).await, 1);
    // A task's id has a note, too, and no key.
    assert_eq!(w.redis::<u64>(&["HSET", "queued", "k:acme:task", "1-1"]).await, 1);
    let mut mended = w.mended().await;
    mended.sort();
    assert_eq!(
        mended,
        [found(Fault::IdWithoutEntry, "acme:t1", true), found(Fault::IdWithoutEntry, "k:acme:task", true)]
    );
    assert!(
        matches!(submit().await, Submitted::Accepted { .. }),
        "its producer would wait for a reply that never comes"
    );
    assert_eq!(w.mended().await, []);
}

#[tokio::test]
async fn an_id_that_nothing_ends_is_remembered_for_as_long_as_a_record_is() {
    let World { _server: server, clock, .. } = World::new().await;
    let options = StoreOptions { dedupe_ms: 1_000, retain_ms: 600_000, ..StoreOptions::default() };
    let store = Store::open(&server.url(), 0, Arc::new(options)).unwrap();
    let w = World { store: store.with_time(TimeSource::Injected(clock.clone())), _server: server, clock };
    for (id, says) in [("ended", "e0"), ("lost", "a0")] {
        let () = w.redis(&["SET", &format!("id:acme:{id}"), says]).await;
    }
    let () = w.redis(&["HSET", "effect:acme:pay:ab", "b", "ghost/0/ab"]).await;
    assert_eq!(w.mended().await.len(), 3);
    for id in ["ended", "lost"] {
        assert!(w.redis::<i64>(&["PTTL", &format!("id:acme:{id}")]).await > 500_000, "{id}");
    }
}

/// A call has claimed an effect, and waits for its next try when its deadline comes: what ends it writes no end of the claim.
#[tokio::test]
async fn the_claim_of_a_call_whose_end_is_on_record_is_no_fault() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 1)]).await;
    let slice = w.lease("w1").await.remove(0);
    let effect = EffectName { tenant: slice.name.tenant.clone(), tool: "pay".into(), hash: "ab".into() };
    let claim = EffectClaim {
        name: slice.name.clone(),
        fence: slice.fence.clone(),
        position: 0,
        digest: "d".into(),
        effect,
        window_ms: DAY,
        nothing: None,
        knows: None,
    };
    assert_eq!(w.store.claim(&[claim]).await.unwrap(), [Claimed::Ours]);
    let parked = Retry {
        name: slice.name.clone(),
        fence: slice.fence.clone(),
        queue: slice.queue.clone(),
        position: 0,
        delay_ms: 2 * DAY,
        attempt: 1,
        begun: false,
        beside: false,
        cause: "busy".into(),
    };
    assert_eq!(w.store.retry(&[parked]).await.unwrap(), [Parked::Ok]);
    assert_eq!(w.mended().await, [], "it waits");
    w.advance(DAY);
    let promoted = w.store.promote(std::slice::from_ref(&slice.name)).await.unwrap();
    let [Promoted::Ending(ending)] = promoted.as_slice() else { panic!("{promoted:?}") };
    let settlement =
        ending_of(&ReportOptions::default(), &tickfleet_model::Policy::default(), ending, None, START).unwrap();
    assert_eq!(w.store.settle(&[settlement]).await.unwrap(), [Settled::Done]);
    assert_eq!(w.mended().await, [], "its record says what came of it");
    let () = w.redis(&["DEL", "done:acme:t1"]).await;
    assert_eq!(w.mended().await, [found(Fault::ClaimWithoutTurn, "acme:pay:ab", false)]);
    w.advance(DAY);
    assert_eq!(w.mended().await, [], "for whoever claims it next it is over");
}

#[tokio::test]
async fn what_is_of_another_type_is_told_and_no_loop_is_sent_there() {
    let w = World::new().await;
    let foreign = ["counters:odd", "external:acme:odd", "lane:acme:odd"];
    for key in foreign {
        let () = w.redis(&["SET", key, "text"]).await;
    }
    let mut told = w.mended().await;
    told.sort();
    let named = |item: &str| found(Fault::Foreign, item, false);
    assert_eq!(told, foreign.map(named), "with their keys");
    assert_eq!(w.redis::<u64>(&["SCARD", "limits"]).await, 0);
    assert_eq!(w.redis::<u64>(&["ZCARD", "timers"]).await, 0);
}

#[tokio::test]
async fn one_foreign_record_hides_nothing_of_what_else_is_wrong() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 1)]).await;
    let () = w.redis(&["SET", "turn:acme:text", "text"]).await;
    let () = w.redis(&["HSET", "turn:odd", "n", "1"]).await;
    for timer in ["t:acme:text", "t:odd", "t:acme:none"] {
        let () = w.redis(&["ZADD", "timers", "9999999999999", timer]).await;
    }
    let () = w.redis(&["HINCRBY", "tenant:acme", "q", "3"]).await;
    let told = w.mended().await;
    for wrong in [
        found(Fault::Foreign, "turn:acme:text", false),
        found(Fault::TurnUnreadable, "turn:odd", false),
        found(Fault::TimerWithoutTurn, "acme:none", true),
        found(Fault::TenantMiscounted, "acme", true),
    ] {
        assert!(told.contains(&wrong), "{wrong:?} is not told: {told:?}");
    }
    assert_eq!(w.redis::<u64>(&["HGET", "tenant:acme", "q"]).await, 1);
}

#[tokio::test]
async fn a_runtime_keeps_its_task_though_a_hand_has_deleted_its_entry() {
    let w = World::new().await;
    let delegation = w.delegated("k1").await;
    let queue = delegation.queue.to_string();
    let held = w.runtime().take(&queue, 1).await.unwrap().remove(0);
    assert_eq!(w.redis::<u64>(&["XDEL", &queue, &held.id]).await, 1);
    assert_eq!(w.mended().await, []);
    let task = TurnName::task(&delegation.tenant, &delegation.task);
    w.advance(5_000);
    let promoted = w.store.promote(std::slice::from_ref(&task)).await.unwrap();
    assert!(matches!(promoted[0], Promoted::Later), "another runtime has it: {promoted:?}");
    // What names no task is nobody's, whoever holds it.
    let odd: String = w.redis(&["XADD", &queue, "*", "a", "b"]).await;
    assert_eq!(w.runtime().take(&queue, 1).await.unwrap()[0].id, odd);
    assert_eq!(w.mended().await, [found(Fault::EntryStranded, &format!("{queue} {odd}"), true)]);
}

#[tokio::test]
async fn a_stream_that_comes_back_with_a_task_that_waited_is_listed() {
    let w = World::new().await;
    let delegation = w.delegated("k1").await;
    let task = TurnName::task(&delegation.tenant, &delegation.task);
    let held = w.runtime().take(&delegation.queue.to_string(), 1).await.unwrap().remove(0);
    let parked = Retry {
        name: task.clone(),
        fence: held.id,
        queue: delegation.queue.clone(),
        position: 0,
        delay_ms: 1_000,
        attempt: 1,
        begun: false,
        beside: false,
        cause: "busy".into(),
    };
    assert_eq!(w.store.retry(&[parked]).await.unwrap(), [Parked::Ok]);
    w.store.retire(0, |_, _| false).await.unwrap();
    let stream = delegation.queue.to_string();
    assert_eq!(w.redis::<u64>(&["EXISTS", &stream]).await, 0, "nothing is on it, and nobody is configured to read it");
    w.advance(1_000);
    let promoted = w.store.promote(std::slice::from_ref(&task)).await.unwrap();
    assert!(matches!(promoted[0], Promoted::Promoted), "{promoted:?}");
    assert!(w.redis::<bool>(&["SISMEMBER", "externals", &stream]).await, "nobody would clear it away");
    assert_eq!(w.mended().await, []);
}

/// A record that `promote` has put aside is still counted, and its timer is not given back: it would only be put aside again.
#[tokio::test]
async fn a_record_that_was_put_aside_is_told_as_it_is_and_its_tenant_is_not_counted_anew() {
    for (field, says) in [
        ("dl", Some("soon")),
        ("dl", None),
        ("q", None),
        ("ag", None),
        ("eu", Some("x")),
        ("hb", Some("x")),
        ("el", Some("x")),
    ] {
        let w = World::new().await;
        w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 1), w.turn("t2", 1)]).await;
        let key = "turn:acme:t1";
        match says {
            Some(says) => w.redis::<()>(&["HSET", key, field, says]).await,
            None => w.redis::<()>(&["HDEL", key, field]).await,
        }
        w.advance(DAY);
        let promoted = w.store.promote(&[name("acme:t1")]).await.unwrap();
        assert!(matches!(promoted[0], Promoted::Aside(_)), "{field}: {promoted:?}");
        let () = w.redis(&["HSET", "tenant:other", "q", "3"]).await;
        let repaired = w.repaired().await;
        let told: Vec<_> = repaired.found.into_iter().map(|found| (found.fault, found.item)).collect();
        let both = [(Fault::TurnUnreadable, key.to_owned()), (Fault::TenantMiscounted, "other".to_owned())];
        assert_eq!((told.as_slice(), repaired.counted), (&both[..], false), "{field}");
        // Who was told of it and deletes it leaves nothing behind.
        let () = w.redis(&["DEL", key]).await;
        let after: Vec<_> = w.mended().await.into_iter().map(|found| found.0).collect();
        assert!(after.contains(&Fault::TenantMiscounted), "{field}: {after:?}");
    }
}
