//! Slices that their holders return, and turns that end while somebody looks at them.

use super::*;

#[tokio::test]
async fn what_was_begun_and_never_sent_is_begun_again_and_what_a_lost_holder_began_is_not() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let queue = Queue::Ready(Priority::Normal);
    let mut reader = shard.reader("w");
    for (mut slice, why) in shard.leased(2).await.into_iter().zip([Returned::Unsent, Returned::Stray]) {
        let begin = |slice: &(TurnName, String)| Begin {
            name: slice.0.clone(),
            fence: slice.1.clone(),
            position: 0,
            nonce: Some(format!("{}.1", slice.1)),
            digest: "d".into(),
            knows: None,
        };
        assert_eq!(shard.store.begin(&[begin(&slice)]).await.unwrap(), [Begun::Ok]);
        let back = HandBack { name: slice.0.clone(), fence: slice.1.clone(), queue: queue.clone(), why };
        assert_eq!(shard.store.hand_back(&[back]).await.unwrap(), 1);
        let queue = if why == Returned::Unsent { "ready:normal" } else { "ready:suspect:normal" };
        let entry = reader.take(queue, 1).await.unwrap().remove(0);
        let crashes = entry.field("x").map(<[u8]>::to_vec);
        slice.1 = entry.id;
        let begun = shard.store.begin(&[begin(&slice)]).await.unwrap();
        match why {
            Returned::Unsent => assert_eq!((begun, crashes), (vec![Begun::Ok], None)),
            // Its next holder knows that it must ask, whatever the call is by now.
            _ => assert_eq!((begun, crashes), (vec![Begun::Unknown], Some(b"1".to_vec()))),
        }
    }
}

/// A Redis that has lost its last writes, and whose clock is behind, gives ids out once more: what a holder knows by one
/// is another turn's by now.
#[tokio::test]
async fn whoever_speaks_of_an_entry_that_is_another_turns_takes_it_from_nobody() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let slices = shard.leased(2).await;
    let (stale, queue) = ((slices[0].0.clone(), slices[1].1.clone()), Queue::Ready(Priority::Normal));
    let (name, fence) = stale.clone();
    assert_eq!(shard.settle(&stale, 1).await.unwrap(), [Settled::Stale]);
    let back = HandBack { name: name.clone(), fence: fence.clone(), queue: queue.clone(), why: Returned::Stray };
    assert_eq!(shard.store.hand_back(&[back]).await.unwrap(), 0);
    let cause = "why".to_owned();
    let retry = Retry { name, fence, queue, position: 0, delay_ms: 10, attempt: 1, beside: false, begun: false, cause };
    assert_eq!(shard.store.retry(&[retry]).await.unwrap(), [Parked::Stale]);
    let mut redis = shard.server.connection().await;
    let ready = shard.store.keys().key("ready:normal");
    let left: u64 = redis::cmd("XLEN").arg(&ready).query_async(&mut redis).await.unwrap();
    let held: (u64, redis::Value, redis::Value, redis::Value) =
        redis::cmd("XPENDING").arg(&ready).arg("workers").query_async(&mut redis).await.unwrap();
    assert_eq!((left, held.0), (2, 2), "an entry of another turn is gone, or nobody holds it");
    for slice in &slices {
        assert_ne!(shard.settle(slice, 1).await.unwrap(), [Settled::Stale], "{slice:?}");
    }
}

#[tokio::test]
async fn a_call_that_a_stopping_worker_broke_off_was_tried_whoever_ends_it() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (name, fence) = shard.leased(1).await.remove(0);
    let back = HandBack { name: name.clone(), fence, queue: Queue::Ready(Priority::Normal), why: Returned::Tried };
    assert_eq!(shard.store.hand_back(&[back]).await.unwrap(), 1);
    assert_eq!(shard.store.cancel(&name, "why").await.unwrap(), Cancelled::Ok);
    let Promoted::Ending(ending) = promote(&shard, &name).await else { panic!("it is not given out to be ended") };
    assert_eq!((ending.tries, ending.begun), (1, None));
}

#[tokio::test]
async fn a_slice_that_no_worker_can_read_waits_for_another_build_and_is_answered_in_the_end() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (name, mut fence) = shard.leased(1).await.remove(0);
    let mut reader = shard.reader("w");
    let (mut waits, mut ended) = (Vec::new(), None);
    while ended.is_none() {
        let queue = Queue::Ready(Priority::Normal);
        let back = HandBack { name: name.clone(), fence: fence.clone(), queue, why: Returned::Unread };
        assert_eq!(shard.store.hand_back(&[back]).await.unwrap(), 1);
        let mut wait_s = 0;
        loop {
            match promote(&shard, &name).await {
                Promoted::Later => {
                    shard.advance(1_000);
                    wait_s += 1;
                }
                Promoted::Promoted => break fence = reader.take("ready:normal", 1).await.unwrap().remove(0).id,
                Promoted::Ending(ending) => break ended = Some(ending),
                other => panic!("{other:?}"),
            }
        }
        waits.push(wait_s);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 0], "s between two offers");
    let ending = ended.unwrap();
    assert_eq!((ending.reason, ending.first, ending.upto), (EndReason::Internal, 0, 2));
    assert_eq!(ending.calls, ["c0", "c1"]);
}

#[tokio::test]
async fn what_has_ended_since_it_was_seen_is_not_woken() {
    // Without the guard its timer would stay for ever: nothing ends an ended turn.
    for (scripts, timers) in [
        (Scripts::embedded(), 0),
        (Scripts::embedded().sabotage("if call('EXISTS', turn_key(ARGV[i])) == 1 then", "if true then").unwrap(), 1),
    ] {
        let shard = Shard::new(RedisOptions::default(), scripts).await;
        let slice = shard.leased(1).await.remove(0);
        assert_eq!(shard.settle(&slice, 2).await.unwrap(), [Settled::Done]);
        shard.store.wake(&[slice.0]).await.unwrap();
        let count = redis::cmd("ZCARD").arg(shard.store.keys().key("timers")).to_owned();
        let found: u64 = count.query_async(&mut shard.server.connection().await).await.unwrap();
        assert_eq!(found, timers);
    }
}

/// A slice goes from one stream to another whose next id is the very one that its holder knows it by: the ids before it,
/// and after.
async fn fences_of_two_streams(scripts: Scripts) -> (String, String) {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let mut redis = shard.server.connection().await;
    for queue in ["ready:normal", "ready:suspect:normal"] {
        let (key, last) = (format!("{{tickfleet:0}}:{queue}"), "9999999999999-0");
        let _: String = redis::cmd("XADD").arg(&key).arg(last).arg("x").arg("y").query_async(&mut redis).await.unwrap();
        let _: u64 = redis::cmd("XDEL").arg(&key).arg(last).query_async(&mut redis).await.unwrap();
    }
    let slice = shard.leased(1).await.remove(0);
    let (name, fence) = slice.clone();
    // Begun, and left: it goes to the suspects.
    let nonce = Some("w.1".to_owned());
    let begin = Begin { name: name.clone(), fence: fence.clone(), position: 0, nonce, digest: "d".into(), knows: None };
    assert_eq!(shard.store.begin(&[begin]).await.unwrap(), [Begun::Ok]);
    let back = HandBack { name, fence, queue: Queue::Ready(Priority::Normal), why: Returned::Stray };
    assert_eq!(shard.store.hand_back(&[back]).await.unwrap(), 1);
    let again = shard.reader("w").take("ready:suspect:normal", 1).await.unwrap().remove(0);
    if again.id != slice.1 {
        assert_eq!(shard.settle(&slice, 2).await.unwrap(), [Settled::Stale]);
    }
    (slice.1, again.id)
}

#[tokio::test]
async fn a_fence_never_comes_again_from_another_stream() {
    let (before, after) = fences_of_two_streams(Scripts::embedded()).await;
    assert_eq!((before.as_str(), after.as_str()), ("9999999999999-1", "9999999999999-2"));
    let sabotage = Scripts::embedded().sabotage("if crashes > 0 and fence ==", "if false and fence ==").unwrap();
    let (before, after) = fences_of_two_streams(sabotage).await;
    assert_eq!(before, after, "its last holder could settle it");
}

/// Whether anybody has read it, nobody can know: whoever did gets a lease to say so, and nobody is told that it did not
/// run.
#[tokio::test]
async fn a_slice_that_got_lost_is_never_told_as_not_run() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let lease_ms = StoreOptions::default().ending_lease_ms;
    let taken = shard.leased(2).await;
    let key = shard.store.keys().key("ready:normal");
    let forget = redis::cmd("XGROUP").arg(&["DELCONSUMER", &key, "workers", "w"]).to_owned();
    let () = forget.query_async(&mut shard.server.connection().await).await.unwrap();
    // One is cancelled; the other goes out anew first, and is cancelled then.
    let [(first, _), (second, old)] = <[_; 2]>::try_from(taken).unwrap();
    shard.store.wake(std::slice::from_ref(&second)).await.unwrap();
    assert!(matches!(promote(&shard, &second).await, Promoted::Later));
    assert_eq!(shard.store.cancel(&first, "why").await.unwrap(), Cancelled::Ok);
    assert!(matches!(promote(&shard, &first).await, Promoted::Later));
    shard.advance(lease_ms + 1);
    assert!(matches!(promote(&shard, &second).await, Promoted::Restored));
    let entry = shard.reader("w").take("ready:normal", 2).await.unwrap().remove(0);
    assert_eq!((entry.field("l"), entry.field("x")), (Some(&b"1"[..]), None), "its next holder knows");
    assert_ne!(entry.id, old);
    let mut look = redis::cmd("XRANGE");
    look.arg(&key).arg(&old).arg(&old);
    let left: Vec<redis::Value> = look.query_async(&mut shard.server.connection().await).await.unwrap();
    assert_eq!(left, [], "nobody would ever end the old entry");
    let Promoted::Ending(ending) = promote(&shard, &first).await else { panic!("it is not given out to be ended") };
    assert_eq!((ending.reason, ending.crashes), (EndReason::Cancelled, 1));
}

/// What is said of a slice that is cancelled after its queue's group was destroyed: at once, and after a lease.
async fn cancelled_without_group(scripts: Scripts) -> (Promoted, Promoted) {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let (name, _) = shard.leased(1).await.remove(0);
    let key = shard.store.keys().key("ready:normal");
    let destroy = redis::cmd("XGROUP").arg(&["DESTROY", &key, "workers"]).to_owned();
    let () = destroy.query_async(&mut shard.server.connection().await).await.unwrap();
    assert_eq!(shard.store.cancel(&name, "why").await.unwrap(), Cancelled::Ok);
    let at_once = promote(&shard, &name).await;
    shard.advance(StoreOptions::default().ending_lease_ms + 1);
    (at_once, promote(&shard, &name).await)
}

/// Whether anybody has read it, its queue's group alone knew.
#[tokio::test]
async fn a_slice_whose_queue_has_lost_its_group_is_not_told_as_not_run() {
    let (at_once, later) = cancelled_without_group(Scripts::embedded()).await;
    assert!(matches!(at_once, Promoted::Later), "its holder has a lease to end it");
    let Promoted::Ending(ending) = later else { panic!("it is not given out to be ended") };
    assert_eq!((ending.reason, ending.crashes), (EndReason::Cancelled, 1));
    let sabotage = Scripts::embedded().sabotage("if not group or not after(", "if group and not after(").unwrap();
    let (at_once, _) = cancelled_without_group(sabotage).await;
    assert!(matches!(at_once, Promoted::Ending(ending) if ending.crashes == 0), "nobody would know that it ran");
}

/// Rule 4: what living workers hold is not given out again under the same fence.
#[tokio::test]
async fn a_group_that_was_destroyed_begins_at_the_end_of_its_queue_and_at_the_beginning_where_it_is_new() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (name, fence) = shard.leased(1).await.remove(0);
    let destroy = |stream: &str| {
        let key = shard.store.keys().key(stream);
        redis::cmd("XGROUP").arg("DESTROY").arg(key).arg("workers").to_owned()
    };
    let mut connection = shard.server.connection().await;
    let () = destroy("ready:normal").query_async(&mut connection).await.unwrap();
    assert_eq!(shard.store.ensure_groups().await.unwrap(), 1);
    let mut reader = shard.reader("other");
    assert!(reader.take("ready:normal", 1).await.unwrap().is_empty(), "{fence} of {name} is given out twice");
    // Inbound entries have no record that they could be made of anew.
    let turns = shard.inbound(1).await;
    let () = destroy("turns").query_async(&mut connection).await.unwrap();
    assert_eq!(shard.store.ensure_groups().await.unwrap(), 1);
    assert_eq!(reader.take("turns", 9).await.unwrap().len(), turns.len());
}
