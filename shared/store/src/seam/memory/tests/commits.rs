#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

#[tokio::test]
async fn records_are_versioned_and_expire_with_their_parts() {
    let mut bench = Bench::new();
    let first = bench.write(vec![put("a", "1{}", None), Write::PutPart(record("a"), "p".into(), "x".into())]).await;
    assert_eq!((first.now_ms, first.was_committed), (START, false));
    assert_eq!(bench.text("a").await.unwrap(), "v1 - - 1{}");
    bench.guard(vec![Guard::Version(record("a"), Version::new("v1")), Guard::Present(record("a"))]).await.unwrap();
    bench.guard(vec![Guard::Absent(record("b"))]).await.unwrap();
    let stored = Some(Bytes::from_static(b"v1 - - 1{}"));
    let conflict = Err(Conflict::Record { key: record("a"), stored: stored.clone() });
    assert_eq!(bench.guard(vec![Guard::Version(record("a"), Version::new("v"))]).await, conflict);
    assert_eq!(bench.guard(vec![Guard::Absent(record("a"))]).await, conflict);
    let missing = Err(Conflict::Record { key: record("b"), stored: None });
    assert_eq!(bench.guard(vec![Guard::Present(record("b"))]).await, missing);

    bench.write(vec![put("a", "1{}", Some(50))]).await;
    bench.clock.step(50);
    assert!(bench.text("a").await.is_some());
    bench.write(vec![Write::PutPart(record("a"), "late".into(), "x".into())]).await;
    bench.clock.step(1);
    assert_eq!(bench.text("a").await, None);
    assert_eq!(bench.read(Query::AllParts(record("a"))).await, Value::AllParts(vec![]));
    assert_eq!(bench.store.sample_memory().await.unwrap().0, 0);
}

#[tokio::test]
async fn a_put_without_a_ttl_clears_an_earlier_ttl() {
    let mut bench = Bench::new();
    bench.write(vec![put("a", "1{}", Some(50))]).await;
    bench.write(vec![put("a", "1{}", None)]).await;
    bench.clock.step(1000);
    assert!(bench.text("a").await.is_some());
}

#[tokio::test]
async fn parts_are_read_by_name_and_removed() {
    let mut bench = Bench::new();
    let part = |name: &str, value: &'static str| Write::PutPart(record("a"), name.into(), value.into());
    bench.write(vec![put("a", "1{}", None), part("y", "2"), part("x", "1"), part("z", "3")]).await;
    bench.write(vec![Write::DeleteParts(record("a"), vec!["z".into(), "none".into()])]).await;
    let all = vec![("x".into(), Bytes::from("1")), ("y".into(), Bytes::from("2"))];
    assert_eq!(bench.read(Query::AllParts(record("a"))).await, Value::AllParts(all));
    let some = bench.read(Query::Parts(record("a"), vec!["y".into(), "z".into()])).await;
    assert_eq!(some, Value::Parts(vec![Some("2".into()), None]));
    bench.write(vec![Write::Delete(record("a"))]).await;
    assert_eq!(bench.read(Query::Parts(record("a"), vec!["y".into()])).await, Value::Parts(vec![None]));
}

#[tokio::test]
async fn a_repeated_commit_is_recognized_by_its_proof() {
    let mut bench = Bench::new();
    let mut transaction = bench.transaction();
    transaction.dedupe_record = Some(record("a"));
    transaction.guard(Guard::Absent(record("a")));
    transaction.write(put("a", "1{}", None)).write(Write::Enqueue(StreamKey::new("q1"), fields("x")));
    let first = bench.commit(&transaction).await.unwrap();
    assert_eq!((first.was_committed, first.entries.len()), (false, 1));
    let second = bench.commit(&transaction).await.unwrap();
    assert_eq!((second.was_committed, second.entries.len()), (true, 0));
    assert_eq!(bench.store.backlog(&StreamKey::new("q1")).await.unwrap(), QueueCounts { waiting: 1, held: 0 });
}

#[tokio::test]
async fn a_failed_guard_writes_nothing() {
    let mut bench = Bench::new();
    bench.write(vec![Write::Enqueue(StreamKey::new("q1"), fields("x"))]).await;
    let entry = bench.store.take(&take(1, 0)).await.unwrap().remove(0).entry;
    let before = bench.store.lock().shard.contents.clone();
    let inbox = InboxKey { tenant: "t".into(), inbox: "i".into() };
    let mut transaction = bench.transaction();
    transaction
        .guard(Guard::Debit(debit("a", 1, 1, Window::Total)))
        .guard(Guard::Inbox { inbox: inbox.clone(), unread_max: 1, inboxes_max: 1 })
        .guard(Guard::Held(StreamKey::new("q1"), entry))
        .guard(Guard::Held(StreamKey::new("q1"), EntryId::new("1-1")))
        .write(put("a", "1{}", None))
        .write(Write::Reply(inbox, "x".into()));
    assert_eq!(bench.commit(&transaction).await, Err(Conflict::NotHeld));
    assert_eq!(bench.store.lock().shard.contents, before);
}

#[tokio::test]
async fn a_transaction_sees_earlier_transactions_of_its_batch() {
    let mut bench = Bench::new();
    let [mut one, mut two] = [bench.transaction(), bench.transaction()];
    one.write(put("a", "1{}", None));
    two.guard(Guard::Absent(record("a"))).write(put("b", "1{}", None));
    let three = Transaction { guards: vec![Guard::Version(record("a"), one.version.clone())], ..bench.transaction() };
    let batch = bench.store.commit(&[one, two, three]).await.unwrap();
    assert_eq!(batch.results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(bench.text("b").await, None);
}

#[tokio::test]
async fn time_guards_use_shard_time() {
    let mut bench = Bench::new();
    bench.guard(vec![Guard::Before(START + 1), Guard::Since(START)]).await.unwrap();
    let conflict = Err(Conflict::Time { now_ms: START });
    assert_eq!(bench.guard(vec![Guard::Before(START)]).await, conflict);
    assert_eq!(bench.guard(vec![Guard::Since(START + 1)]).await, conflict);
    bench.clock.step(-500);
    bench.guard(vec![Guard::Since(START)]).await.unwrap();
    bench.clock.step(10);
    assert_eq!(bench.store.shard().await.unwrap().now_ms, START + 10);
}

#[tokio::test]
async fn guards_reject_stale_generations_and_epochs() {
    let mut bench = Bench::new();
    bench.write(vec![Write::PolicyGeneration(3), Write::SettingsGeneration(2)]).await;
    bench.guard(vec![Guard::Generation { policy: 3, settings: 2 }]).await.unwrap();
    bench.guard(vec![Guard::Generation { policy: 4, settings: 4 }]).await.unwrap();
    for (policy, settings) in [(2, 2), (3, 1)] {
        let conflict = Err(Conflict::Generation { policy: 3, settings: 2 });
        assert_eq!(bench.guard(vec![Guard::Generation { policy, settings }]).await, conflict);
    }
    bench.guard(vec![Guard::Epoch { number: 1, lease_ms: 1000 }]).await.unwrap();
    bench.store.restart().await.unwrap();
    let conflict = Err(Conflict::Epoch { number: 2, began_ms: START });
    assert_eq!(bench.guard(vec![Guard::Epoch { number: 1, lease_ms: 0 }]).await, conflict);
    assert_eq!(bench.guard(vec![Guard::Epoch { number: 2, lease_ms: 10 }]).await, conflict);
    bench.guard(vec![Guard::Epoch { number: 2, lease_ms: 0 }]).await.unwrap();
    bench.clock.step(10);
    bench.guard(vec![Guard::Epoch { number: 2, lease_ms: 10 }]).await.unwrap();
}

#[tokio::test]
async fn bounds_of_streams_and_sets_hold() {
    let mut bench = Bench::new();
    let queue = StreamKey::new("q1");
    let set = SetKey::new("s");
    let fits = |member: &str, max| Guard::Fits { set: SetKey::new("s"), member: member.into(), max };
    bench.guard(vec![Guard::Within(queue.clone(), 1), fits("a", 1)]).await.unwrap();
    let join =
        |member: &str, score| Write::AddMember { set: SetKey::new("s"), member: member.into(), score, queue_of: None };
    bench.write(vec![Write::Enqueue(queue.clone(), fields("x")), join("b", 7), join("a", 7), join("c", 9)]).await;
    assert_eq!(bench.guard(vec![Guard::Within(queue, 1)]).await, Err(Conflict::Full));
    assert_eq!(bench.guard(vec![fits("d", 3)]).await, Err(Conflict::Full));
    bench.guard(vec![fits("a", 1), Guard::Member(set.clone(), "a".into())]).await.unwrap();
    assert_eq!(bench.guard(vec![Guard::Member(set.clone(), "d".into())]).await, Err(Conflict::NoMember));
    bench.guard(vec![Guard::First(set.clone(), "a".into())]).await.unwrap();
    for member in ["b", "d"] {
        assert_eq!(bench.guard(vec![Guard::First(set.clone(), member.into())]).await, Err(Conflict::NoMember));
    }
    let first = bench.read(Query::First { set: set.clone(), upto: Some(8), count: 5 }).await;
    assert_eq!(first, Value::Members(vec![("a".into(), 7), ("b".into(), 7)]));
    bench
        .write(vec![join("a", 20), Write::RemoveMember { set: set.clone(), member: "b".into(), queue_of: None }])
        .await;
    let first = bench.read(Query::First { set: set.clone(), upto: None, count: 5 }).await;
    assert_eq!(first, Value::Members(vec![("c".into(), 9), ("a".into(), 20)]));
    assert_eq!(bench.read(Query::Size(set.clone())).await, Value::Size(2));
    assert_eq!(bench.read(Query::Score(set, "b".into())).await, Value::Score(None));
}

#[tokio::test]
async fn timers_follow_their_rule() {
    let mut bench = Bench::new();
    let timer = |due_ms, rule| Write::Timer { name: "t".into(), due_ms, rule };
    let due = async |bench: &Bench| bench.read(Query::Score(keys::timers(), "t".into())).await;
    bench.write(vec![timer(5, TimerRule::Wake)]).await;
    assert_eq!(due(&bench).await, Value::Score(None));
    bench.write(vec![timer(5, TimerRule::Earlier), timer(7, TimerRule::Earlier)]).await;
    assert_eq!(due(&bench).await, Value::Score(Some(5)));
    bench.write(vec![timer(3, TimerRule::Wake), timer(4, TimerRule::Wake)]).await;
    assert_eq!(due(&bench).await, Value::Score(Some(3)));
    bench.write(vec![timer(9, TimerRule::Set)]).await;
    assert_eq!(due(&bench).await, Value::Score(Some(9)));
    bench.write(vec![Write::ClearTimer("t".into())]).await;
    assert_eq!(due(&bench).await, Value::Score(None));
}

#[tokio::test]
async fn memory_pressure_fails_the_memory_guard() {
    let mut bench = Bench::new();
    bench.guard(vec![Guard::MemoryAvailable]).await.unwrap();
    bench.write(vec![put("a", &"x".repeat(9_000), None)]).await;
    bench.guard(vec![Guard::MemoryAvailable]).await.unwrap();
    let (bytes, bytes_max) = bench.store.sample_memory().await.unwrap();
    assert!(bytes > 9_000 && bytes_max == 10_000);
    assert_eq!(bench.guard(vec![Guard::MemoryAvailable]).await, Err(Conflict::Pressure));
    assert!(bench.store.shard().await.unwrap().pressure);
    bench.write(vec![Write::Delete(record("a"))]).await;
    bench.store.sample_memory().await.unwrap();
    bench.guard(vec![Guard::MemoryAvailable]).await.unwrap();
}

#[tokio::test]
async fn scans_find_each_record_once() {
    let mut bench = Bench::new();
    for n in 0..57 {
        bench.write(vec![put(&format!("a:{n}"), "1{}", None), put(&format!("b:{n}"), "1{}", None)]).await;
    }
    bench.write(vec![Write::PutPart(record("a:parts"), "p".into(), "x".into())]).await;
    let mut found = Vec::new();
    let mut cursor = 0;
    let mut pages = 0;
    loop {
        let (keys, next) = bench.store.scan("a:", cursor, 10).await.unwrap();
        found.extend(keys);
        (cursor, pages) = (next, pages + 1);
        if next == 0 {
            break;
        }
    }
    found.sort();
    found.dedup();
    assert_eq!((found.len(), pages), (57, 6));
    bench.guard(vec![Guard::Debit(debit("x", 1, 5, Window::Concurrency))]).await.unwrap();
    let (counters, next) = bench.store.scan_counters("limit", 0, 10).await.unwrap();
    assert_eq!((counters.len(), next), (1, 0));
}
