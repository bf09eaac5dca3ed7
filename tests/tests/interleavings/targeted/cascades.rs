//! What a turn or task has begun ends with it, step by step, whoever does the next step.

use super::external::{delegation, idle};
use super::*;

fn of(task: &str) -> TurnName {
    TurnName::parse(&format!("acme:{task}")).unwrap()
}

/// A task that nobody reads, under `parent`.
async fn child(shard: &Shard, task: &str, parent: &str, budget: u32) {
    let parent = (!parent.is_empty()).then(|| TaskId::new(parent).unwrap());
    let written = Delegation { parent, budget, ..delegation(task, None) };
    assert_eq!(shard.store.delegate(&[written]).await.unwrap(), [Delegated::Ok], "{task}");
}

/// Ends a task as its runtime says.
async fn ended(shard: &Shard, task: &str, failed: bool) {
    let queue = delegation(task, None).queue;
    let key = queue.to_string();
    let fence = loop {
        let entry = shard.reader("far").take(&key, 1).await.unwrap().remove(0);
        let name = String::from_utf8_lossy(entry.field("t").unwrap_or_default()).into_owned();
        if name == format!("acme:{task}") {
            break entry.id;
        }
    };
    settled(shard, task, &fence, Some(queue), failed).await;
}

async fn settled(shard: &Shard, task: &str, fence: &str, queue: Option<Queue>, failed: bool) {
    let head = format!(r#"{{"task_id":"{task}","results":["#);
    let settlement = Settlement {
        name: of(task),
        fence: fence.to_owned(),
        queue,
        first: 0,
        reply_to: None,
        frame: ReplyFrame { head, ..ReplyFrame::default() },
        calls: vec![SettledCall { result: "1".into(), failed, ..SettledCall::default() }],
    };
    assert_eq!(shard.store.settle(&[settlement]).await.unwrap(), [Settled::Done], "{task}");
}

/// One step of each cascade that is due, as any scheduler takes it. Answers how many were asked to end.
async fn step(shard: &Shard, count: usize) -> u64 {
    let mut ended = 0;
    for name in shard.store.due(START_MS + 60_000, 1_000).await.unwrap().cascades {
        ended += shard.store.cascade(&name, count).await.unwrap().ended;
    }
    ended
}

async fn all_steps(shard: &Shard) -> u64 {
    let (mut ended, mut steps) = (0, 0);
    while !shard.store.due(START_MS + 60_000, 1_000).await.unwrap().cascades.is_empty() {
        ended += step(shard, 64).await;
        steps += 1;
        assert!(steps < 1_000, "it does not end");
    }
    ended
}

async fn why(shard: &Shard, task: &str) -> Option<String> {
    shard.store.cancelled_because(&of(task)).await.unwrap()
}

/// A task with 150 tasks below it is quarantined. A scheduler takes one step and dies, the next one takes the others. Answers how many
/// are to end after the first step, and after the last.
async fn quarantined(scripts: Scripts) -> (usize, usize) {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    child(&shard, "k1", "", 300).await;
    let queue = delegation("k1", None).queue;
    let entry = shard.reader("far").take(&queue.to_string(), 1).await.unwrap().remove(0);
    for i in 0..150 {
        child(&shard, &format!("c{i}"), "k1", 1).await;
    }
    // Its runtimes fall silent, one after the other; they read in front of the children.
    let (mut held, mut ending) = (entry.id, None);
    for _ in 0..3 {
        idle(&shard, &queue, &held, 6_000).await;
        shard.advance(6_000);
        match promote(&shard, &of("k1")).await {
            Promoted::Lapsed => {
                let entries = shard.reader("far").take(&queue.to_string(), 200).await.unwrap();
                held = entries.last().unwrap().id.clone();
            }
            Promoted::Ending(found) => ending = Some(found),
            other => panic!("{other:?}"),
        }
    }
    let ending = ending.unwrap();
    assert_eq!(ending.reason, EndReason::Internal);
    settled(&shard, "k1", &ending.fence, None, true).await;
    let cancelled = async |shard: &Shard| {
        let mut count = 0;
        for i in 0..150 {
            let why = why(shard, &format!("c{i}")).await;
            assert!(why.as_deref().is_none_or(|why| why == "the task that began it has failed"), "{why:?}");
            count += usize::from(why.is_some());
        }
        count
    };
    step(&shard, 64).await;
    let first = cancelled(&shard).await;
    all_steps(&shard).await;
    let last = cancelled(&shard).await;
    let left: Vec<String> = keys(&shard, "cascades").await.into_iter().chain(keys(&shard, "under:*").await).collect();
    assert!(left.is_empty() || last < 150, "{left:?}");
    (first, last)
}

#[tokio::test]
async fn what_a_quarantined_task_began_ends_although_schedulers_die_between_the_steps() {
    assert_eq!(quarantined(Scripts::embedded()).await, (64, 150));
    let forgets = ("if reply[2] == 0 then done_with() else", "if true then done_with() else");
    let goes_on = ("if not is_of_task or item.failed then", "if not is_of_task then");
    for ((guard, without), left) in [(forgets, (64, 64)), (goes_on, (0, 0))] {
        let sabotage = Scripts::embedded().sabotage(guard, without).unwrap();
        assert_eq!(quarantined(sabotage).await, left, "{guard}");
    }
}

#[tokio::test]
async fn a_cascade_whose_timer_is_gone_is_found_and_continues() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    child(&shard, "job", "", 10).await;
    child(&shard, "c1", "job", 1).await;
    shard.store.cancel(&of("job"), "enough").await.unwrap();
    let mut redis = shard.server.connection().await;
    let timers = shard.store.keys().key("timers");
    let () = redis::cmd("ZREM").arg(timers).arg("c:acme:job").query_async(&mut redis).await.unwrap();
    assert_eq!(step(&shard, 64).await, 0);
    shard.store.prune(&tickfleet_store::PruneAt::default()).await.unwrap();
    assert_eq!((step(&shard, 64).await, why(&shard, "c1").await.is_some()), (1, true));
}

async fn keys(shard: &Shard, pattern: &str) -> Vec<String> {
    let mut redis = shard.server.connection().await;
    redis::cmd("KEYS").arg(shard.store.keys().key(pattern)).query_async(&mut redis).await.unwrap()
}

#[tokio::test]
async fn a_cancel_reaches_the_bottom_of_a_deep_tree_and_what_a_finished_task_left_there() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    child(&shard, "d0", "", 90).await;
    for depth in 1..60 {
        child(&shard, &format!("d{depth}"), &format!("d{}", depth - 1), 90 - depth).await;
    }
    // One in between has ended well: what it began goes on.
    ended(&shard, "d30", false).await;
    assert_eq!((why(&shard, "d31").await, step(&shard, 64).await), (None, 0));
    shard.store.cancel(&of("d0"), "wrong customer").await.unwrap();
    assert_eq!(step(&shard, 64).await, 1, "one level at a time");
    assert_eq!(all_steps(&shard).await, 58);
    for depth in (1..60).filter(|depth| *depth != 30) {
        let why = why(&shard, &format!("d{depth}")).await;
        assert_eq!(why.as_deref(), Some("its parent was cancelled: wrong customer"), "{depth}");
    }
    assert_eq!(why(&shard, "d0").await.as_deref(), Some("wrong customer"));
}

#[tokio::test]
async fn an_id_that_is_used_again_ends_nothing_of_the_task_before_and_no_circle_goes_on_for_ever() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    child(&shard, "a", "", 10).await;
    child(&shard, "b", "a", 5).await;
    ended(&shard, "a", false).await;
    let mut redis = shard.server.connection().await;
    for key in ["done:acme:a", "id:acme:a"] {
        let () = redis::cmd("DEL").arg(shard.store.keys().key(key)).query_async(&mut redis).await.unwrap();
    }
    // The new `a` is a child of `b`, which the one before had begun.
    child(&shard, "a", "b", 2).await;
    shard.store.cancel(&of("a"), "not this one").await.unwrap();
    assert_eq!((all_steps(&shard).await, why(&shard, "b").await), (0, None));
    // A hand makes the circle.
    let under = shard.store.keys().key("under:acme:a");
    let () = redis::cmd("ZADD").arg(under).arg(1).arg("b").query_async(&mut redis).await.unwrap();
    shard.store.cancel(&of("b"), "enough").await.unwrap();
    assert_eq!(all_steps(&shard).await, 2);
    assert_eq!(
        (why(&shard, "b").await.as_deref(), why(&shard, "a").await.as_deref()),
        (Some("enough"), Some("not this one"))
    );
}

#[tokio::test]
async fn an_inner_turn_ends_with_its_outer_one_also_where_it_comes_later() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let inner = |admission: &Admission, turn: &str| Admission {
        turn: TurnId::new(turn).unwrap(),
        given: false,
        digest: String::new(),
        ..admission.clone()
    };
    let batch = shard.inbound(4).await;
    let admitted = async |turn: Admission| match shard.admit(&[turn]).await.unwrap() {
        AdmitReply::Decided { mut turns, .. } => turns.remove(0),
        other => panic!("{other:?}"),
    };
    assert!(matches!(admitted(batch[0].clone()).await, Admitted::Dispatched));
    assert!(matches!(admitted(inner(&batch[1], "t0.0.call-1")).await, Admitted::Dispatched));
    assert!(matches!(admitted(inner(&batch[2], "t0.0.call-1.0.call-1")).await, Admitted::Dispatched));
    shard.store.cancel(&of("t0"), "enough").await.unwrap();
    let Admitted::Ending(ending) = admitted(inner(&batch[3], "t0.1.call-1")).await else { panic!("it runs") };
    assert_eq!((ending.reason, ending.why.as_deref()), (EndReason::Cancelled, Some("the call that began it is over")));
    assert_eq!(all_steps(&shard).await, 2);
    let why = why(&shard, "t0.0.call-1.0.call-1").await;
    assert_eq!(why.as_deref(), Some("its parent was cancelled: enough"));
}

#[tokio::test]
async fn what_cannot_be_read_below_a_task_costs_itself_alone() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    child(&shard, "job", "", 10).await;
    for task in ["c1", "c2", "c3"] {
        child(&shard, task, "job", 1).await;
    }
    child(&shard, "other", "", 10).await;
    child(&shard, "c4", "other", 1).await;
    let mut redis = shard.server.connection().await;
    for key in ["turn:acme:c2", "under:acme:other"] {
        let key = shard.store.keys().key(key);
        let () = redis::cmd("SET").arg(key).arg("text").query_async(&mut redis).await.unwrap();
    }
    for task in ["job", "other"] {
        shard.store.cancel(&of(task), "enough").await.unwrap();
    }
    let mut aside = 0;
    for name in shard.store.due(START_MS + 60_000, 100).await.unwrap().cascades {
        aside += shard.store.cascade(&name, 64).await.unwrap().aside.len();
    }
    assert_eq!((aside, all_steps(&shard).await), (2, 0));
    for task in ["c1", "c3"] {
        assert_eq!(why(&shard, task).await.as_deref(), Some("its parent was cancelled: enough"), "{task}");
    }
    // A task is begun below what is no list all the same.
    let () = redis::cmd("SET")
        .arg(shard.store.keys().key("under:acme:last"))
        .arg("text")
        .query_async(&mut redis)
        .await
        .unwrap();
    child(&shard, "last", "", 10).await;
    let () = redis::cmd("SET")
        .arg(shard.store.keys().key("under:acme:last"))
        .arg("text")
        .query_async(&mut redis)
        .await
        .unwrap();
    child(&shard, "c5", "last", 1).await;
}
