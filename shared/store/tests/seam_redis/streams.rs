use super::*;
use tickfleet_store::entry_number;
use tickfleet_store::seam::{QueueCounts, TrimBounds};

#[tokio::test]
async fn a_take_skips_queue_checks_while_the_queues_are_empty() {
    let b = Bench::start().await;
    b.store.ensure_queues(&[queue("high"), queue("low")]).await.unwrap();
    let looks = async || -> usize {
        let stats: String = b.command(&["INFO", "commandstats"]).await;
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_xinfo|groups:calls="));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    };
    let take =
        |wait_ms| TakeRequest { consumer: "w".into(), queues: vec![queue("high"), queue("low")], count: 4, wait_ms };
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
}

/// A batch with many acknowledged entries trims the queue instead of deleting each entry.
#[tokio::test]
async fn a_trim_of_acknowledged_entries_keeps_held_and_waiting_entries() {
    let b = Bench::start().await;
    b.store.ensure_queues(&[queue("q")]).await.unwrap();
    b.commit(with(vec![], (0..35).map(|_| enqueue("q", "v")).collect())).await.unwrap();
    let taken = b.take("q", 32).await;
    let settle = async |entries: &[EntryId]| {
        let settle = |entry: &EntryId| with(vec![Guard::Held(queue("q"), entry.clone())], vec![]);
        let batch: Vec<_> = entries.iter().map(settle).collect();
        assert!(b.commit_all(&batch).await.iter().all(Result::is_ok));
        b.store.backlog(&queue("q")).await.unwrap()
    };
    assert_eq!(settle(&taken[..10]).await, QueueCounts { waiting: 3, held: 22 });
    assert_eq!(settle(&taken[11..21]).await, QueueCounts { waiting: 3, held: 12 }, "an older entry is held");
    let rest = [&taken[10..11], &taken[21..]].concat();
    assert_eq!(settle(&rest).await, QueueCounts { waiting: 3, held: 0 });
}

#[tokio::test]
async fn replies_count_as_read_after_all_groups_acknowledge_them() {
    let b = Bench::start().await;
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
    let keep = TrimBounds { read_through: entry_number(&ids[1]), ..TrimBounds::default() };
    assert_eq!(b.store.trim(&log, keep).await.unwrap(), 2);
}
