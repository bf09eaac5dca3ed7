//! Tasks of external runtimes: silence, leases and cancels.

use tickfleet_store::BegunBy;

use super::*;

/// A task of an outside runtime with a lease of 5 s and a deadline in 60 s.
async fn external(shard: &Shard) -> (TurnName, Queue) {
    let delegation = delegation("k1", None);
    let (name, queue) = (TurnName::task(&delegation.tenant, &delegation.task), delegation.queue.clone());
    assert_eq!(shard.store.delegate(&[delegation]).await.unwrap(), [Delegated::Ok]);
    (name, queue)
}

/// That task by another id, as it comes in an entry where there is one.
pub(super) fn delegation(task: &str, entry: Option<String>) -> Delegation {
    let (tenant, agent) = (TenantId::new("acme").unwrap(), AgentId::new("far").unwrap());
    Delegation {
        entry,
        queue: Queue::External(tenant.clone(), agent.clone()),
        tenant,
        task: TaskId::new(task).unwrap(),
        given: true,
        digest: "d".into(),
        agent,
        deadline_ms: START_MS + 60_000,
        budget: 3,
        by: None,
        awaited: false,
        parent: None,
        meta: "m".into(),
        call: "c0".into(),
        reply_to: None,
        external_lease_ms: 5_000,
    }
}

/// Redis reckons idle times by its own clock: it is told that the entry has been held for so long.
pub(super) async fn idle(shard: &Shard, queue: &Queue, entry: &str, ms: i64) {
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
    assert_eq!((ending.calls, ending.begun.map(|begun| begun.by)), (vec!["c0".to_owned()], Some(BegunBy::Runtime)));
}

#[tokio::test]
async fn a_task_of_a_silent_runtime_whose_timer_a_hand_has_taken_is_looked_for() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (name, queue) = external(&shard).await;
    let entry = shard.reader("far").take(&queue.to_string(), 1).await.unwrap().remove(0);
    let adrift = async || shard.store.sweep(tickfleet_store::SweepAt::default()).await.unwrap().adrift;
    assert_eq!(adrift().await, []);
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("DEL").arg(shard.store.keys().key("timers")).query_async(&mut redis).await.unwrap();
    assert_eq!(adrift().await, std::slice::from_ref(&name));
    shard.store.wake(std::slice::from_ref(&name)).await.unwrap();
    assert_eq!(adrift().await, []);
    idle(&shard, &queue, &entry.id, 6_000).await;
    shard.advance(6_000);
    assert!(matches!(promote(&shard, &name).await, Promoted::Lapsed), "it is offered anew");
}

/// Whether a silent runtime loses its task where Redis' clock has stepped back since it took it: to Redis, it has only
/// just been taken, for as long as the step was.
async fn lapses(scripts: Scripts) -> bool {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let (name, queue) = external(&shard).await;
    let entry = shard.reader("far").take(&queue.to_string(), 1).await.unwrap().remove(0);
    for ms in [5_000, 6_000] {
        shard.advance(ms);
        idle(&shard, &queue, &entry.id, 0).await;
        if matches!(promote(&shard, &name).await, Promoted::Lapsed) {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_silent_runtime_loses_its_task_although_redis_clock_has_stepped_back() {
    assert!(lapses(Scripts::embedded()).await);
    let sabotage = Scripts::embedded().sabotage("if fence == rec.fence then return num(since) end", "").unwrap();
    assert!(!lapses(sabotage).await, "it keeps it until the clock has caught up");
}

/// How many entries are left of a task that ends, and of another that is unread, after somebody has made its queue's
/// group anew.
async fn left_on_queue(scripts: Scripts) -> u64 {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let (name, queue) = external(&shard).await;
    let entry = shard.reader("far").take(&queue.to_string(), 1).await.unwrap().remove(0);
    let key = shard.store.keys().key(&queue);
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("XGROUP").arg("DESTROY").arg(&key).arg("workers").query_async(&mut redis).await.unwrap();
    let () = redis::cmd("XGROUP").arg("CREATE").arg(&key).arg("workers").arg(0).query_async(&mut redis).await.unwrap();
    // Another that nobody has read: an entry that is alone on its queue is deleted by name anyway.
    let _: String = redis::cmd("XADD").arg(&key).arg(&["*", "another", ""]).query_async(&mut redis).await.unwrap();
    let settlement = Settlement {
        name,
        fence: entry.id,
        queue: Some(queue),
        first: 0,
        reply_to: None,
        frame: ReplyFrame { head: r#"{"results":["#.into(), ..ReplyFrame::default() },
        calls: vec![SettledCall { result: "1".into(), ..SettledCall::default() }],
    };
    assert_eq!(shard.store.settle(&[settlement]).await.unwrap(), [Settled::Done]);
    redis::cmd("XLEN").arg(&key).query_async(&mut redis).await.unwrap()
}

#[tokio::test]
async fn a_task_that_has_ended_is_not_given_out_again_although_its_group_was_made_anew() {
    assert_eq!(left_on_queue(Scripts::embedded()).await, 1);
    let sabotage = Scripts::embedded()
        .sabotage("unpack(entries, from, upto)) <= upto - from then", "unpack(entries, from, upto)) < 0 then");
    assert_eq!(left_on_queue(sabotage.unwrap()).await, 2);
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
    assert!(
        ending.begun.is_some_and(|begun| begun.by == BegunBy::Runtime),
        "what its runtime did is not known: {ending:?}"
    );
}

#[tokio::test]
async fn nothing_is_delegated_from_what_was_cancelled_or_is_about_to_end() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (parent, _) = external(&shard).await;
    let (by, other) = (TurnName::task(&parent.tenant, &TaskId::new("k2").unwrap()), delegation("k2", None));
    assert_eq!(shard.store.delegate(&[other]).await.unwrap(), [Delegated::Ok]);
    let from = |task: &str, parent: bool| Delegation {
        parent: parent.then(|| TaskId::new("k1").unwrap()),
        by: (!parent).then(|| by.turn.clone()),
        budget: 1,
        ..delegation(task, None)
    };
    let write = async |task: &str, parent: bool| shard.store.delegate(&[from(task, parent)]).await.unwrap().remove(0);
    assert_eq!((write("a", true).await, write("b", false).await), (Delegated::Ok, Delegated::Ok));
    for name in [&parent, &by] {
        shard.store.cancel(name, "no longer wanted").await.unwrap();
    }
    let over = Delegated::Refused("parent_ended".into());
    assert_eq!((write("c", true).await, write("d", false).await), (over.clone(), over.clone()));
    // What was written before is asked for once more, and is there.
    assert_eq!(write("a", true).await, Delegated::Duplicate);
}
