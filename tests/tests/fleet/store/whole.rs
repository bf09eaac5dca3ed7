//! Turns that one slice carries out: their replies come rendered, and what happened to them meanwhile counts all the same.

use tickfleet_store::FinishedTurn;

use super::*;

async fn leased(calls: usize) -> (World, SliceEntry) {
    let w = World::new().await;
    w.admit(w.row(10, 100, DayCapAction::Reject), &[w.turn("t1", calls)]).await;
    let slice = w.lease("w1").await.remove(0);
    assert_eq!((slice.meta.calls, slice.calls.len()), (calls, calls));
    (w, slice)
}

async fn finished(w: &World, slice: &SliceEntry) -> FinishedTurn {
    let TurnView::Finished(turn) = w.store.look(&slice.name).await.unwrap() else { panic!("it has not ended") };
    turn
}

async fn audited(w: &World) -> usize {
    let command = redis::cmd("XLEN").arg(w.store.keys().key("audit")).to_owned();
    w.store.connection().query(Question::Look, &command).await.unwrap()
}

#[tokio::test]
async fn a_whole_turn_has_the_reply_and_the_record_of_one_that_was_settled_call_by_call() {
    let (w, slice) = leased(2).await;
    assert_eq!(
        w.store.settle(&[settlement(&slice, 2), settlement(&slice, 2)]).await.unwrap(),
        [Settled::Done, Settled::Already]
    );
    let at_once = finished(&w, &slice).await;
    let (x, other) = leased(2).await;
    for (first, ended) in [(0, Settled::Continue), (1, Settled::Done)] {
        let part = Settlement { first, ..settlement(&SliceEntry { first, ..other.clone() }, 1) };
        assert_eq!(x.store.settle(&[part]).await.unwrap(), [ended]);
    }
    let in_parts = finished(&x, &other).await;
    assert_eq!((w.replies().await, audited(&w).await), (x.replies().await, audited(&x).await));
    assert_eq!(
        (w.replies().await, at_once.reply.as_str()),
        (vec![r#"{"results":[0,1]}"#.into()], r#"{"results":[0,1]}"#)
    );
    assert_eq!(at_once, in_parts);
    assert_eq!((at_once.admissions.len(), at_once.ended_ms), (1, Some(w.clock.load(Ordering::SeqCst))));
}

#[tokio::test]
async fn a_whole_turn_that_comes_after_a_part_of_it_tells_nothing_twice() {
    let (w, slice) = leased(2).await;
    assert_eq!(w.store.settle(&[settlement(&slice, 1)]).await.unwrap(), [Settled::Continue]);
    assert_eq!(w.store.settle(&[settlement(&slice, 2)]).await.unwrap(), [Settled::Done]);
    assert_eq!((w.replies().await, audited(&w).await), (vec![r#"{"results":[0,1]}"#.to_owned()], 2));
}

#[tokio::test]
async fn the_record_of_a_whole_turn_says_that_it_was_cancelled_and_what_was_tried() {
    let (w, slice) = leased(1).await;
    assert_eq!(w.store.cancel(&slice.name, "enough").await.unwrap(), Cancelled::Flagged);
    assert_eq!(w.store.settle(&[settlement(&slice, 1)]).await.unwrap(), [Settled::Done]);
    assert_eq!(finished(&w, &slice).await.cancelled.as_deref(), Some("enough"));

    let (w, slice) = leased(1).await;
    let (name, fence, queue) = (slice.name.clone(), slice.fence.clone(), slice.queue.clone());
    let retry = Retry {
        name,
        fence,
        queue,
        position: 0,
        delay_ms: 10,
        attempt: 1,
        beside: false,
        begun: false,
        cause: "busy".into(),
    };
    assert_eq!(w.store.retry(&[retry]).await.unwrap(), [Parked::Ok]);
    // Whoever held it last has nothing to say any more, though the record still has what it began with.
    assert_eq!(w.store.settle(&[settlement(&slice, 1)]).await.unwrap(), [Settled::Stale]);
    w.advance(10);
    w.store.promote(std::slice::from_ref(&slice.name)).await.unwrap();
    let again = w.lease("w2").await.remove(0);
    assert_eq!(w.store.settle(&[settlement(&slice, 1)]).await.unwrap(), [Settled::Stale]);
    assert_eq!(w.store.settle(&[settlement(&again, 1)]).await.unwrap(), [Settled::Done]);
    let turn = finished(&w, &slice).await;
    assert_eq!((turn.retries, turn.tries.len(), w.replies().await.len()), (1, 1, 1));
}

#[tokio::test]
async fn an_inbox_that_is_something_else_costs_its_replies_alone() {
    let (w, slice) = leased(1).await;
    let set = redis::cmd("SET").arg(w.store.keys().key("replies:acme:box")).arg("no stream").to_owned();
    let () = w.store.connection().query(Question::Look, &set).await.unwrap();
    assert_eq!(w.store.settle(&[settlement(&slice, 1)]).await.unwrap(), [Settled::Done]);
    assert_eq!(finished(&w, &slice).await.reply, r#"{"results":[0]}"#);
}
