use super::*;
use tickfleet_core::TimerRule;
use tickfleet_store::entry_number;
use tickfleet_store::seam::{QueueCounts, TrimBounds};

fn put_for(name: &str, ttl_ms: i64) -> Write {
    Write::Put { key: key(name), content: Bytes::from_static(b"1{}"), ttl_ms: Some(ttl_ms) }
}

fn part(name: &str, part: &str) -> Write {
    Write::PutPart(key(name), part.into(), Bytes::from_static(b"p"))
}

#[tokio::test]
async fn records_and_their_parts_expire_together() {
    on_each(false, async |b| {
        b.commit(with(vec![], vec![part("r", "a"), part("r", "b"), part("r", "c"), put("r", "1{}")])).await.unwrap();
        b.commit(with(vec![], vec![Write::DeleteParts(key("r"), vec!["a".into(), "z".into()])])).await.unwrap();
        let p = Bytes::from_static(b"p");
        assert_eq!(
            b.read(Query::AllParts(key("r"))).await,
            Value::AllParts(vec![(arc("b"), p.clone()), (arc("c"), p.clone())])
        );
        let parts = Query::Parts(key("r"), vec!["c".into(), "a".into()]);
        assert_eq!(b.read(parts).await, Value::Parts(vec![Some(p), None]));
        let lives = async |name: &str| {
            let record = b.full(name);
            let parts = b.full(&format!("parts:{name}"));
            (b.command::<i64>(&["PTTL", &record]).await, b.command::<i64>(&["PTTL", &parts]).await)
        };
        assert_eq!(lives("r").await, (-1, -1));
        b.commit(with(vec![], vec![put_for("r", 50_000)])).await.unwrap();
        let (record, parts) = lives("r").await;
        assert!(record > 0 && parts > 0);
        b.commit(with(vec![], vec![put("r", "1{}")])).await.unwrap();
        assert_eq!(lives("r").await, (-1, -1));
        b.commit(with(vec![], vec![put_for("s", 50_000)])).await.unwrap();
        b.commit(with(vec![], vec![part("s", "late")])).await.unwrap();
        assert!(lives("s").await.1 > 0);
        b.commit(with(vec![], vec![Write::Delete(key("r"))])).await.unwrap();
        assert_eq!(lives("r").await, (-2, -2));
        b.commit(with(vec![], vec![put_for("s", 1)])).await.unwrap();
        // Expiry uses the server's clock, so the test has to wait.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!((b.record("s").await, lives("s").await), (None, (-2, -2)));
    })
    .await;
}

#[tokio::test]
async fn timers_and_sets_are_ordered_by_score() {
    on_each(false, async |b| {
        let mut t = transaction();
        t.timer("a", 50, TimerRule::Set).timer("b", 20, TimerRule::Set).timer("none", 1, TimerRule::Wake);
        t.timer("a", 70, TimerRule::Earlier).timer("a", 60, TimerRule::Wake).timer("c", 9, TimerRule::Earlier);
        t.timer("b", 10, TimerRule::Wake).timer("d", -5, TimerRule::Set).timer("a", 90, TimerRule::Set);
        t.write(Write::ClearTimer("d".into())).timer("e", 0, TimerRule::Set);
        b.commit(t).await.unwrap();
        let first = |upto, count| Query::First { set: set("timers"), upto, count };
        let member = |name: &str, score| (arc(name), score);
        assert_eq!(
            b.read(first(None, 9)).await,
            Value::Members(vec![member("e", 0), member("c", 9), member("b", 10), member("a", 90)])
        );
        assert_eq!(b.read(first(Some(10), 2)).await, Value::Members(vec![member("e", 0), member("c", 9)]));
        assert_eq!(b.read(Query::Score(set("timers"), "a".into())).await, Value::Score(Some(90)));
        assert_eq!(b.read(Query::Score(set("timers"), "d".into())).await, Value::Score(None));
        let far = 1 << 53;
        b.commit(with(vec![], vec![join("s", "x", far), join("s", "y", 3), join("s", "x", far - 1)])).await.unwrap();
        assert_eq!(b.read(Query::Score(set("s"), "x".into())).await, Value::Score(Some(far - 1)));
        let leave = Write::RemoveMember { set: set("s"), member: "y".into(), queue_of: None };
        b.commit(with(vec![], vec![leave])).await.unwrap();
        assert_eq!(b.read(Query::Size(set("s"))).await, Value::Size(1));
    })
    .await;
}

#[tokio::test]
async fn a_record_names_the_last_enqueued_slice() {
    on_each(false, async |b| {
        let t = with(vec![], vec![put("a", "1{}"), enqueue("q", "1"), enqueue("p", "2"), put("b", "1{}")]);
        let version = t.version.clone();
        let entries = b.commit(t).await.unwrap().entries;
        assert_eq!(entries.len(), 2);
        assert_eq!(b.record("a").await, Some(format!("{version} - - 1{{}}")));
        assert_eq!(b.record("b").await, Some(format!("{version} {} - 1{{}}", entries[1])));
    })
    .await;
}

#[tokio::test]
async fn a_take_skips_queue_checks_while_the_queues_are_empty() {
    on_each(false, async |b| {
        b.store.ensure_queues(&[queue("high"), queue("low")]).await.unwrap();
        let looks = async || -> usize {
            let stats: String = b.command(&["INFO", "commandstats"]).await;
            let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_xinfo|groups:calls="));
            line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
        };
        let take = |wait_ms| TakeRequest {
            consumer: "w".into(),
            queues: vec![queue("high"), queue("low")],
            count: 4,
            wait_ms,
        };
        assert_eq!(b.store.take(&take(20)).await.unwrap(), vec![]);
        let before = looks().await;
        assert_eq!(b.store.take(&take(20)).await.unwrap(), vec![]);
        assert_eq!(looks().await, before);
        let batch = (1..=6).map(|_| enqueue("low", "1")).collect();
        b.commit(with(vec![], batch)).await.unwrap();
        assert_eq!(b.store.take(&take(20)).await.unwrap().len(), 2);
        b.commit(with(vec![], (1..=4).map(|_| enqueue("high", "2")).collect())).await.unwrap();
        let taken = b.store.take(&take(20)).await.unwrap();
        assert_eq!(taken.iter().filter(|entry| entry.queue == queue("high")).count(), 4);
    })
    .await;
}

#[tokio::test]
async fn queues_are_taken_in_order_of_preference() {
    on_each(false, async |b| {
        let batch = vec![enqueue("low", "1"), enqueue("low", "2"), enqueue("high", "3"), enqueue("high", "4")];
        b.commit(with(vec![], batch)).await.unwrap();
        let take = |count, wait_ms| TakeRequest {
            consumer: "w".into(),
            queues: vec![queue("high"), queue("low")],
            count,
            wait_ms,
        };
        let taken = b.store.take(&take(3, 0)).await.unwrap();
        let values: Vec<_> = taken.iter().map(|taken| (taken.queue.as_str(), taken.fields[0].1.clone())).collect();
        let value = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(values, vec![("high", value("3")), ("high", value("4")), ("low", value("1"))]);
        assert_eq!(b.store.backlog(&queue("low")).await.unwrap(), QueueCounts { waiting: 1, held: 1 });
        let holds = Query::Holds { stream: queue("high"), consumer: "w".into(), count: 9 };
        assert_eq!(b.read(holds).await, Value::Holds(vec![taken[0].entry.clone(), taken[1].entry.clone()]));
        assert_eq!(b.read(Query::Holder(queue("low"), taken[2].entry.clone())).await, Value::Holder(Some("w".into())));
        assert_eq!(b.store.take(&take(9, 0)).await.unwrap().len(), 1);
        let waiting = take(9, 5_000);
        let (taken, ()) = tokio::join!(b.store.take(&waiting), async {
            // The take has to be blocked before the entry arrives.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            b.commit(with(vec![], vec![enqueue("low", "5")])).await.unwrap();
        });
        assert_eq!(taken.unwrap().len(), 1);
        assert_eq!(b.store.take(&take(9, 20)).await.unwrap(), vec![]);
        let consumers = b.store.consumers(&queue("low")).await.unwrap();
        assert_eq!(consumers.iter().map(|one| (&*one.name, one.held)).collect::<Vec<_>>(), vec![("w", 3)]);
        assert!(!b.store.remove_consumer(&queue("low"), "w").await.unwrap());
        assert!(b.store.remove_consumer(&queue("low"), "nobody").await.unwrap());
        let Value::Holds(held) = b.read(Query::Holds { stream: queue("low"), consumer: "w".into(), count: 9 }).await
        else {
            panic!()
        };
        let removed = held.into_iter().map(|entry| Write::Remove(queue("low"), entry)).collect();
        b.commit(with(vec![], removed)).await.unwrap();
        assert_eq!(b.store.backlog(&queue("low")).await.unwrap(), QueueCounts::default());
        assert!(b.store.remove_consumer(&queue("low"), "w").await.unwrap());
        assert_eq!(b.store.consumers(&queue("low")).await.unwrap(), vec![]);
        assert_eq!(b.store.consumers(&queue("none")).await.unwrap(), vec![]);
    })
    .await;
}

#[tokio::test]
async fn logs_are_appended_and_trimmed() {
    on_each(false, async |b| {
        let append = |max_entries| Write::Append {
            log: queue("audit"),
            fields: vec![("audit".into(), Bytes::from_static(b"{}")), ("v".into(), Bytes::from_static(b"1"))],
            max_entries,
        };
        b.commit(with(vec![], (0..10).map(|_| append(0)).collect())).await.unwrap();
        let Value::Entries(all) = b.read(Query::Entries { stream: queue("audit"), after: None, count: 100 }).await
        else {
            panic!()
        };
        assert_eq!(all.len(), 10);
        let after = Query::Entries { stream: queue("audit"), after: Some(all[3].0.clone()), count: 2 };
        assert_eq!(b.read(after).await, Value::Entries(all[4..6].to_vec()));
        let packed = |id: &EntryId| {
            let (ms, seq) = id.as_str().split_once('-').unwrap();
            ms.parse::<u128>().unwrap() << 64 | seq.parse::<u128>().unwrap()
        };
        let keep = TrimBounds { read_upto: Some(packed(&all[1].0)), ..TrimBounds::default() };
        assert_eq!(b.store.trim(&queue("audit"), keep).await.unwrap(), 2);
        let ahead = TrimBounds { read_upto: Some(packed(&all[9].0) + 1), ..TrimBounds::default() };
        assert_eq!(b.store.trim(&queue("audit"), ahead).await.unwrap(), 0);
        assert_eq!(b.store.trim(&queue("audit"), TrimBounds { entries: 3, ..TrimBounds::default() }).await.unwrap(), 5);
        assert_eq!(
            b.store.trim(&queue("audit"), TrimBounds { age_ms: 60_000, ..TrimBounds::default() }).await.unwrap(),
            0
        );
        // The age of entries is by the server's clock, so the test has to wait.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!(b.store.trim(&queue("audit"), TrimBounds { age_ms: 5, ..TrimBounds::default() }).await.unwrap(), 3);
        b.commit(with(vec![], (0..2_000).map(|_| append(100)).collect())).await.unwrap();
        assert!(b.command::<u64>(&["XLEN", &b.full("audit")]).await <= 300);
    })
    .await;
}

#[tokio::test]
async fn replies_are_numbered_per_inbox() {
    on_each(false, async |b| {
        let reply = |name: &str| with(vec![], vec![Write::Reply(inbox(name), Bytes::from_static(b"r"))]);
        let now = b.store.shard().await.unwrap().now_ms;
        b.commit_all(&[reply("a"), reply("b"), reply("a")]).await;
        b.commit_all(&[reply("a")]).await;
        for (name, numbers) in [("a", vec!["1", "2", "3"]), ("b", vec!["1"])] {
            let stream = queue(&format!("replies:acme:{name}"));
            let Value::Entries(all) = b.read(Query::Entries { stream, after: None, count: 9 }).await else { panic!() };
            let found: Vec<_> =
                all.iter().map(|(_, fields)| String::from_utf8(fields[1].1.to_vec()).unwrap()).collect();
            assert_eq!(found, numbers);
            assert_eq!(all[0].1[0], (arc("reply"), Bytes::from_static(b"r")));
        }
        let Value::Score(Some(used)) = b.read(Query::Score(set("inboxes:acme"), "a".into())).await else { panic!() };
        assert!(used >= now.unsigned_abs());
    })
    .await;
}

#[tokio::test]
async fn records_and_counters_are_listed() {
    on_each(false, async |b| {
        let mut t = transaction();
        for at in 0..50 {
            t.write(put(&format!("turn:[{at}]"), "1{}"));
            t.write(Write::Add { counter: counter(&format!("c{at}")), amount: 1, ends_ms: None });
        }
        t.write(put("other", "1{}")).write(join("turn:[set", "m", 1));
        b.commit(t).await.unwrap();
        let mut cursor = 0;
        let mut found = Vec::new();
        loop {
            let (keys, next) = b.store.scan("turn:[", cursor, 10).await.unwrap();
            found.extend(keys);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 50);
        let (counters, _) = b.store.scan_counters("tick", 0, 1_000).await.unwrap();
        assert_eq!(counters.len(), 50);
        assert!(counters.iter().all(|(_, state)| state.used == 1));
    })
    .await;
}

#[tokio::test]
async fn replies_count_as_read_after_all_groups_acknowledge_them() {
    on_each(false, async |b| {
        let log = queue("replies:acme:box");
        assert_eq!(b.store.acknowledged(&log).await.unwrap(), None);
        let reply = || Write::Reply(inbox("box"), Bytes::from_static(b"r"));
        b.commit(with(vec![], vec![reply(), reply(), reply()])).await.unwrap();
        assert_eq!(b.store.acknowledged(&log).await.unwrap(), None);
        let full = b.full("replies:acme:box");
        let mut ids = Vec::new();
        for group in ["one", "two"] {
            let _: String = b.command(&["XGROUP", "CREATE", &full, group, "0"]).await;
            assert_eq!(b.store.acknowledged(&log).await.unwrap(), Some(0));
            let read = ["XREADGROUP", "GROUP", group, "r", "COUNT", "2", "STREAMS", &full, ">"];
            let _: redis::Value = b.command(&read).await;
            let pending: Vec<(String, String, u64, u64)> = b.command(&["XPENDING", &full, group, "-", "+", "9"]).await;
            ids = pending.into_iter().map(|(id, ..)| id).collect();
            let acknowledged = b.store.acknowledged(&log).await.unwrap();
            assert!(acknowledged < entry_number(&ids[0]), "{acknowledged:?}");
            let _: u64 = b.command(&["XACK", &full, group, &ids[1]]).await;
            assert!(b.store.acknowledged(&log).await.unwrap() < entry_number(&ids[0]));
            let _: u64 = b.command(&["XACK", &full, group, &ids[0]]).await;
            assert_eq!(b.store.acknowledged(&log).await.unwrap(), entry_number(&ids[1]));
        }
        let keep = TrimBounds { read_upto: entry_number(&ids[1]), ..TrimBounds::default() };
        assert_eq!(b.store.trim(&log, keep).await.unwrap(), 2);
    })
    .await;
}
