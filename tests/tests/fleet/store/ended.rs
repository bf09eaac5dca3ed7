//! Turns that end without running: expired, empty, cancelled.

use super::*;

#[tokio::test]
async fn an_expired_turn_is_ended_wherever_it_waits() {
    let w = World::new().await;
    let mut turn = w.turn("t1", 2);
    turn.deadline_ms = w.clock.load(Ordering::SeqCst) + 500;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[turn]).await;
    w.advance(500);
    let name = TurnName::parse("acme:t1").unwrap();
    let promoted = w.store.promote(std::slice::from_ref(&name)).await.unwrap();
    let Promoted::Ending(ending) = &promoted[0] else { panic!("{promoted:?}") };
    assert_eq!((ending.reason, ending.calls.len()), (EndReason::Expired, 2));
    assert!(w.lease("w1").await.is_empty(), "nobody can lease what was taken back");
}

#[tokio::test]
async fn a_turn_without_calls_ends_once_though_the_first_to_end_it_dies() {
    let world = World::new().await;
    let answer = Admission {
        deadline_ms: 0,
        meta: r#"{"ag":"kelly","di":"text","dl":0,"dg":"d","n":0,"rt":"box"}"#.into(),
        calls: vec![Ending::NO_CALL.into()],
        ..world.turn("words", 0)
    };
    let admitted = world.admit(world.row(1, 1, DayCapAction::Reject), &[answer]).await;
    let [Admitted::Ending(lost)] = admitted.as_slice() else { panic!("{admitted:?}") };
    assert!(lost.is_of_no_calls());
    // Whoever was given it is gone: its timer gives it to another, with all that a reply needs.
    world.advance(world.store.options().ending_lease_ms + 1);
    let promoted = world.store.promote(std::slice::from_ref(&lost.name)).await.unwrap();
    let [Promoted::Ending(again)] = promoted.as_slice() else { panic!("{promoted:?}") };
    assert!(again.is_of_no_calls());
    let options = ReportOptions::default();
    let settlements = [lost, again]
        .map(|ending| ending_of(&options, &tickfleet_model::Policy::default(), ending, None, START).unwrap());
    assert_eq!(world.store.settle(&settlements).await.unwrap(), [Settled::Stale, Settled::Done]);
    let replies = world.replies().await;
    assert_eq!(replies.len(), 1);
    assert!(replies[0].ends_with(r#""status":"done","dialect":"text","results":[]}"#), "{}", replies[0]);
}

/// What is told of two calls whose first one was tried twice and waits for its next try when the turn is cancelled.
async fn told_of_a_retry(beside: bool) -> Vec<String> {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 2)]).await;
    let slice = w.lease("w1").await.remove(0);
    let (name, fence, queue) = (slice.name.clone(), slice.fence.clone(), slice.queue.clone());
    let cause = "busy".into();
    let retry = Retry {
        name: name.clone(),
        fence,
        queue,
        position: 0,
        delay_ms: 60_000,
        attempt: 2,
        beside,
        begun: false,
        cause,
    };
    assert_eq!(w.store.retry(&[retry]).await.unwrap(), [Parked::Ok]);
    assert_eq!(w.store.cancel(&name, "enough").await.unwrap(), Cancelled::Ok);
    let promoted = w.store.promote(&[name]).await.unwrap();
    let Promoted::Ending(ending) = &promoted[0] else { panic!("{promoted:?}") };
    assert_eq!(ending.tries, 2);
    let told = ending_of(
        &ReportOptions::default(),
        &tickfleet_model::Policy::default(),
        ending,
        None,
        w.clock.load(Ordering::SeqCst),
    )
    .unwrap()
    .calls;
    told.into_iter().map(|call| call.result).collect()
}

#[tokio::test]
async fn a_call_that_was_tried_is_not_told_as_not_run_when_its_turn_is_cancelled() {
    let told = told_of_a_retry(false).await;
    assert!(told[0].contains("2 tries failed; what they did before is not known"), "{}", told[0]);
    assert!(told[0].contains("\"attempts\":2"), "{}", told[0]);
    assert!(told[1].contains("It was not executed"), "{}", told[1]);
}

#[tokio::test]
async fn reads_that_ran_beside_each_other_when_their_worker_stopped_are_not_told_as_not_run() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 2)]).await;
    let slice = w.lease("w1").await.remove(0);
    let (name, fence, queue) = (slice.name.clone(), slice.fence.clone(), slice.queue.clone());
    let back = HandBack { name: name.clone(), fence, queue, why: Returned::Beside };
    w.store.hand_back(&[back]).await.unwrap();
    w.store.cancel(&name, "enough").await.unwrap();
    let promoted = w.store.promote(&[name]).await.unwrap();
    let Promoted::Ending(ending) = &promoted[0] else { panic!("{promoted:?}") };
    let told = ending_of(
        &ReportOptions::default(),
        &tickfleet_model::Policy::default(),
        ending,
        None,
        w.clock.load(Ordering::SeqCst),
    )
    .unwrap()
    .calls;
    for call in told {
        assert!(call.result.contains("whether it ran is not known"), "{}", call.result);
    }
}

/// What is told of a call whose worker did not know it, and handed it back, when its turn is cancelled.
async fn told_of_a_stray(redis_restarts: bool) -> String {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 1)]).await;
    let slice = w.lease("w1").await.remove(0);
    w.store.reap(10).await.unwrap();
    if redis_restarts {
        let mut restart = redis::cmd("HSET");
        restart.arg(w.store.keys().key("meta")).arg("run_id").arg("0123456789abcdef");
        let () = restart.query_async(&mut w._server.connection().await).await.unwrap();
    }
    let (name, fence, queue) = (slice.name.clone(), slice.fence.clone(), slice.queue.clone());
    w.store.hand_back(&[HandBack { name: name.clone(), fence, queue, why: Returned::Stray }]).await.unwrap();
    w.advance(w.store.options().ending_lease_ms + 1);
    w.store.cancel(&name, "enough").await.unwrap();
    let promoted = w.store.promote(&[name]).await.unwrap();
    let Promoted::Ending(ending) = &promoted[0] else { panic!("{promoted:?}") };
    let told = ending_of(
        &ReportOptions::default(),
        &tickfleet_model::Policy::default(),
        ending,
        None,
        w.clock.load(Ordering::SeqCst),
    )
    .unwrap()
    .calls;
    told[0].result.clone()
}

#[tokio::test]
async fn what_redis_may_have_forgotten_to_have_ended_is_not_told_as_not_run() {
    let never_arrived = told_of_a_stray(false).await;
    assert!(never_arrived.contains("It was not executed"), "{never_arrived}");
    let forgotten = told_of_a_stray(true).await;
    assert!(forgotten.contains("whether it ran is not known"), "{forgotten}");
}

#[tokio::test]
async fn a_read_that_ran_beside_one_that_failed_is_not_told_as_not_run_either() {
    let told = told_of_a_retry(true).await;
    assert!(told[0].contains("2 tries failed; what they did before is not known"), "{}", told[0]);
    assert!(told[1].contains("whether it ran is not known"), "{}", told[1]);
}

#[tokio::test]
async fn a_suspect_that_waits_for_a_worker_is_ended_where_it_waits_and_one_that_runs_is_told() {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", 2), w.turn("t2", 2)]).await;
    w.store.reap(10).await.unwrap();
    w.lease("w1").await;
    for _ in 0..5 {
        w.advance(4_000);
        w.store.reap(10).await.unwrap();
    }
    let consumer = ConsumerId::new("w2").unwrap();
    w.store.beat(&consumer).await.unwrap();
    let mut reader = w.store.reader(&consumer, Duration::from_millis(10));
    assert!(reader.take("ready:normal", 10).await.unwrap().is_empty());
    assert_eq!(reader.take("ready:suspect:normal", 1).await.unwrap().len(), 1);
    let (runs, waits) = (TurnName::parse("acme:t1").unwrap(), TurnName::parse("acme:t2").unwrap());
    let TurnView::Live(live) = w.store.look(&runs).await.unwrap() else { panic!("it is under way") };
    assert_eq!(live.holder.as_deref(), Some("w2"));

    assert_eq!(w.store.cancel(&runs, "enough").await.unwrap(), Cancelled::Flagged);
    assert_eq!(w.store.beat(&consumer).await.unwrap().cancelled, [runs]);
    assert_eq!(w.store.cancel(&waits, "enough").await.unwrap(), Cancelled::Ok);
    let promoted = w.store.promote(&[waits]).await.unwrap();
    let Promoted::Ending(ending) = &promoted[0] else { panic!("{promoted:?}") };
    assert_eq!((ending.reason, ending.calls.len()), (EndReason::Cancelled, 2));
    assert!(w.lease("w3").await.is_empty(), "nobody can lease what was taken back");
}
