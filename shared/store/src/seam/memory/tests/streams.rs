#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

#[tokio::test]
async fn inboxes_are_bounded_and_their_replies_numbered() {
    let mut bench = Bench::new();
    let inbox = |name: &str| InboxKey { tenant: "t".into(), inbox: name.into() };
    let guard = |name: &str| Guard::Inbox { inbox: inbox(name), unread_max: 2, inboxes_max: 1 };
    bench.guard(vec![guard("a"), guard("a")]).await.unwrap();
    assert_eq!(bench.guard(vec![guard("b")]).await, Err(Conflict::TooManyInboxes));
    bench.write(vec![Write::Reply(inbox("a"), "one".into()), Write::Reply(inbox("a"), "two".into())]).await;
    assert_eq!(bench.guard(vec![guard("a")]).await, Err(Conflict::InboxFull));
    let stream = StreamKey::new("replies:t:a");
    let entries = bench.read(Query::Entries { stream: stream.clone(), after: None, count: 1 }).await;
    let reply = |text: &'static str, seq: &'static str| -> Vec<(Arc<str>, Bytes)> {
        vec![("reply".into(), text.into()), ("seq".into(), seq.into())]
    };
    let id = EntryId::new(format!("{START}-0"));
    assert_eq!(entries, Value::Entries(vec![(id.clone(), reply("one", "1"))]));
    let entries = bench.read(Query::Entries { stream: stream.clone(), after: Some(id), count: 9 }).await;
    assert_eq!(entries, Value::Entries(vec![(EntryId::new(format!("{START}-1")), reply("two", "2"))]));
    // The store has lost the readers' position, so that position does not confirm new entries.
    let read_through = Some((START as u128 + 1) << 64);
    assert_eq!(bench.store.trim(&stream, TrimBounds { read_through, ..TrimBounds::default() }).await.unwrap(), 0);
    let read_through = Some((START as u128) << 64);
    assert_eq!(bench.store.trim(&stream, TrimBounds { read_through, ..TrimBounds::default() }).await.unwrap(), 1);
    bench.guard(vec![guard("a")]).await.unwrap();
    bench.write(vec![Write::Reply(inbox("a"), "three".into())]).await;
    let Value::Entries(entries) = bench.read(Query::Entries { stream, after: None, count: 9 }).await else { panic!() };
    assert_eq!(entries.last().unwrap().1, reply("three", "3"));
}

#[tokio::test]
async fn logs_are_bounded_by_number_and_age() {
    let mut bench = Bench::new();
    let log = StreamKey::new("audit");
    for n in 0..5 {
        let append = Write::Append { log: log.clone(), fields: fields(&n.to_string()), max_entries: 4 };
        bench.write(vec![append]).await;
        bench.clock.step(10);
    }
    let count = async |bench: &Bench| bench.store.backlog(&StreamKey::new("audit")).await.unwrap().waiting;
    assert_eq!(count(&bench).await, 4);
    assert_eq!(bench.store.trim(&log, TrimBounds { entries: 3, ..TrimBounds::default() }).await.unwrap(), 1);
    assert_eq!(bench.store.trim(&log, TrimBounds { age_ms: 20, ..TrimBounds::default() }).await.unwrap(), 1);
    assert_eq!(count(&bench).await, 2);
}

#[tokio::test]
async fn entries_are_taken_held_and_acknowledged() {
    let mut bench = Bench::new();
    let [one, two] = [StreamKey::new("q1"), StreamKey::new("q2")];
    bench.write(vec![Write::Enqueue(two.clone(), fields("b")), Write::Enqueue(one.clone(), fields("a"))]).await;
    let taken = bench.store.take(&take(1, 0)).await.unwrap();
    let entry = EntryId::new(format!("{START}-0"));
    assert_eq!(taken, [TakenEntry { queue: one.clone(), entry: entry.clone(), fields: fields("a") }]);
    assert_eq!(bench.guard(vec![Guard::Unread(one.clone(), entry.clone())]).await, Err(Conflict::Read));
    bench.guard(vec![Guard::Unread(two.clone(), entry.clone())]).await.unwrap();
    assert_eq!(bench.guard(vec![Guard::Held(two.clone(), entry.clone())]).await, Err(Conflict::NotHeld));
    assert_eq!(bench.read(Query::Holder(one.clone(), entry.clone())).await, Value::Holder(Some("c".into())));
    let holds = Query::Holds { stream: one.clone(), consumer: "c".into(), count: 9 };
    assert_eq!(bench.read(holds.clone()).await, Value::Holds(vec![entry.clone()]));
    assert_eq!(bench.store.consumers(&one).await.unwrap(), [Consumer { name: "c".into(), held: 1, idle_ms: 0 }]);
    assert_eq!(bench.store.backlog(&one).await.unwrap(), QueueCounts { waiting: 0, held: 1 });
    assert!(!bench.store.remove_consumer(&one, "c").await.unwrap());
    bench.guard(vec![Guard::Held(one.clone(), entry.clone())]).await.unwrap();
    assert_eq!(bench.guard(vec![Guard::Held(one.clone(), entry.clone())]).await, Err(Conflict::NotHeld));
    assert_eq!(bench.read(Query::Entry(one.clone(), entry.clone())).await, Value::Entry(None));
    assert_eq!(bench.read(holds).await, Value::Holds(vec![]));
    assert!(bench.store.remove_consumer(&one, "c").await.unwrap());
    assert!(bench.store.consumers(&one).await.unwrap().is_empty());
    let committed = bench.write(vec![Write::Enqueue(one.clone(), fields("c"))]).await;
    assert_eq!(committed.entries, [EntryId::new(format!("{START}-1"))]);
    bench.write(vec![Write::Remove(one.clone(), committed.entries[0].clone())]).await;
    let taken = bench.store.take(&take(9, 0)).await.unwrap();
    assert_eq!(taken.len(), 1);
    bench.write(vec![Write::Remove(two.clone(), entry.clone())]).await;
    assert_eq!(bench.guard(vec![Guard::Held(two, entry)]).await, Err(Conflict::NotHeld));
}

#[tokio::test(start_paused = true)]
async fn a_take_waits_for_an_entry() {
    let mut bench = Bench::new();
    let store = bench.store.clone();
    let waiting = tokio::spawn(async move { store.take(&take(1, 60_000)).await.unwrap() });
    tokio::task::yield_now().await;
    bench.write(vec![put("a", "1{}", None)]).await;
    bench.write(vec![Write::Enqueue(StreamKey::new("q2"), fields("x"))]).await;
    assert_eq!(waiting.await.unwrap().len(), 1);
    let begin = Instant::now();
    assert!(bench.store.take(&take(1, 50)).await.unwrap().is_empty());
    assert!(begin.elapsed() >= Duration::from_millis(50));
}
