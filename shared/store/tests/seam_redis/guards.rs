//! Tests each guard in a case where it holds, and in a case where it fails.

use super::*;

fn bytes(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

#[tokio::test]
async fn record_guards_check_version_absence_and_presence() {
    on_each(false, async |b| {
        let first = with(vec![Guard::Absent(key("r"))], vec![put("r", "1{}")]);
        let version = first.version.clone();
        assert_eq!(b.commit(first).await.map(|done| (done.was_committed, done.entries)), Ok((false, vec![])));
        let stored = format!("{version} - - 1{{}}");
        assert_eq!(b.record("r").await.as_deref(), Some(stored.as_str()));
        let is = |stored: Option<Bytes>| Err(Conflict::Record { key: key("r"), stored });
        assert_eq!(b.commit(with(vec![Guard::Absent(key("r"))], vec![])).await, is(bytes(&stored)));
        let wrong = Guard::Version(key("r"), Version::new("t"));
        assert_eq!(b.commit(with(vec![wrong], vec![])).await, is(bytes(&stored)));
        assert!(
            b.commit(with(vec![Guard::Version(key("r"), version), Guard::Present(key("r"))], vec![])).await.is_ok()
        );
        let none = Err(Conflict::Record { key: key("n"), stored: None });
        assert_eq!(b.commit(with(vec![Guard::Version(key("n"), Version::new("t"))], vec![])).await, none);
        assert_eq!(b.commit(with(vec![Guard::Present(key("n"))], vec![])).await, none);
    })
    .await;
}

#[tokio::test]
async fn guards_check_time_generation_and_epoch() {
    on_each(false, async |b| {
        let now = b.store.shard().await.unwrap().now_ms;
        assert!(b.commit(with(vec![Guard::Before(now + 60_000), Guard::Since(now)], vec![])).await.is_ok());
        let refused = b.commit(with(vec![Guard::Before(now)], vec![])).await;
        assert!(matches!(refused, Err(Conflict::Time { now_ms }) if now_ms >= now), "{refused:?}");
        let refused = b.commit(with(vec![Guard::Since(now + 60_000)], vec![])).await;
        assert!(matches!(refused, Err(Conflict::Time { .. })), "{refused:?}");
        let set = vec![Write::PolicyGeneration(4), Write::SettingsGeneration(2)];
        let check = |policy, settings| with(vec![Guard::Generation { policy, settings }], vec![]);
        let results = b.commit_all(&[with(vec![], set), check(4, 2), check(3, 2), check(4, 1), check(5, 9)]).await;
        let older = Err(Conflict::Generation { policy: 4, settings: 2 });
        assert_eq!([&results[2], &results[3]], [&older, &older]);
        assert!(results[1].is_ok() && results[4].is_ok());
        let shard = b.store.shard().await.unwrap();
        assert_eq!((shard.policy, shard.settings, shard.epoch_began_ms), (4, 2, 0));
        let number = shard.epoch;
        assert!(b.commit(with(vec![Guard::Epoch { number, lease_ms: 60_000 }], vec![])).await.is_ok());
        let other = b.commit(with(vec![Guard::Epoch { number: number + 1, lease_ms: 0 }], vec![])).await;
        assert_eq!(other, Err(Conflict::Epoch { number, began_ms: 0 }));
    })
    .await;
}

#[tokio::test]
async fn stream_and_set_guards_check_bounds_and_members() {
    on_each(false, async |b| {
        let within = |max| with(vec![Guard::Within(queue("q"), max)], vec![]);
        b.commit(with(vec![], vec![enqueue("q", "1"), join("s", "a", 5)])).await.unwrap();
        assert!(b.commit(within(2)).await.is_ok());
        assert_eq!(b.commit(within(1)).await, Err(Conflict::Full));
        let fits = |member: &str, max| with(vec![Guard::Fits { set: set("s"), member: member.into(), max }], vec![]);
        assert!(b.commit(fits("b", 2)).await.is_ok());
        assert_eq!(b.commit(fits("b", 1)).await, Err(Conflict::Full));
        assert!(b.commit(fits("a", 1)).await.is_ok());
        assert!(b.commit(with(vec![Guard::Member(set("s"), "a".into())], vec![])).await.is_ok());
        assert_eq!(b.commit(with(vec![Guard::Member(set("s"), "b".into())], vec![])).await, Err(Conflict::NoMember));
        b.commit(with(vec![], vec![join("s", "b", 4)])).await.unwrap();
        assert!(b.commit(with(vec![Guard::First(set("s"), "b".into())], vec![])).await.is_ok());
        assert_eq!(b.commit(with(vec![Guard::First(set("s"), "a".into())], vec![])).await, Err(Conflict::NoMember));
    })
    .await;
}

#[tokio::test]
async fn entry_guards_check_unread_and_held_entries() {
    on_each(false, async |b| {
        b.store.ensure_queues(&[queue("q")]).await.unwrap();
        let entry = b.commit(with(vec![], vec![enqueue("q", "1")])).await.unwrap().entries.pop().unwrap();
        let unread = || with(vec![Guard::Unread(queue("q"), entry.clone())], vec![]);
        let held = || with(vec![Guard::Held(queue("q"), entry.clone())], vec![]);
        assert!(b.commit(unread()).await.is_ok());
        assert_eq!(b.commit(held()).await, Err(Conflict::NotHeld));
        assert_eq!(b.take("q", 5).await, vec![entry.clone()]);
        assert_eq!(b.commit(unread()).await, Err(Conflict::Read));
        let results = b.commit_all(&[held(), unread(), with(vec![Guard::Within(queue("q"), 1)], vec![])]).await;
        assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
        assert_eq!(results[1], Err(Conflict::Read));
        assert_eq!(b.commit(held()).await, Err(Conflict::NotHeld));
        assert_eq!(b.command::<u64>(&["XLEN", &b.full("q")]).await, 0);
        assert_eq!(b.commit(with(vec![Guard::Held(queue("n"), entry.clone())], vec![])).await, Err(Conflict::NotHeld));
        assert_eq!(b.commit(with(vec![Guard::Unread(queue("n"), entry.clone())], vec![])).await, Err(Conflict::Read));
    })
    .await;
}

#[tokio::test]
async fn several_entries_are_acknowledged_together_or_not_at_all() {
    on_each(false, async |b| {
        let one = b.held("q").await;
        let two = b.held("p").await;
        let gone = EntryId::new("1-1");
        for guards in [
            vec![Guard::Held(queue("q"), one.clone()), Guard::Held(queue("p"), gone.clone())],
            vec![Guard::Held(queue("p"), gone.clone()), Guard::Held(queue("q"), one.clone())],
        ] {
            assert_eq!(b.commit(with(guards, vec![])).await, Err(Conflict::NotHeld));
            assert_eq!(b.store.backlog(&queue("q")).await.unwrap().held, 1);
        }
        let both = vec![Guard::Held(queue("q"), one.clone()), Guard::Held(queue("p"), two.clone())];
        assert!(b.commit(with(both, vec![])).await.is_ok());
        assert_eq!(b.store.backlog(&queue("q")).await.unwrap(), Default::default());
        assert_eq!(b.store.backlog(&queue("p")).await.unwrap(), Default::default());
    })
    .await;
}

#[tokio::test]
async fn inboxes_are_bounded() {
    on_each(false, async |b| {
        let guard = |name: &str, unread_max, inboxes_max| {
            with(vec![Guard::Inbox { inbox: inbox(name), unread_max, inboxes_max }], vec![])
        };
        let results = b.commit_all(&[guard("a", 1, 2), guard("b", 1, 2), guard("c", 1, 2), guard("a", 1, 1)]).await;
        assert!(results[0].is_ok() && results[1].is_ok() && results[3].is_ok(), "{results:?}");
        assert_eq!(results[2], Err(Conflict::TooManyInboxes));
        let reply = with(vec![], vec![Write::Reply(inbox("a"), Bytes::from_static(b"r"))]);
        let results = b.commit_all(&[reply, guard("a", 1, 2), guard("a", 2, 2)]).await;
        assert_eq!(results[1], Err(Conflict::InboxFull));
        assert!(results[2].is_ok());
        let refused = with(
            vec![Guard::Inbox { inbox: inbox("d"), unread_max: 1, inboxes_max: 9 }, Guard::Present(key("n"))],
            vec![],
        );
        assert!(b.commit(refused).await.is_err());
        assert_eq!(b.read(Query::Score(set("inboxes:acme"), "d".into())).await, Value::Score(None));
    })
    .await;
}

#[tokio::test]
async fn a_transaction_with_a_failed_guard_writes_nothing() {
    on_each(false, async |b| {
        b.commit(with(vec![], vec![put("there", "1{}"), join("s", "a", 1), enqueue("q", "x")])).await.unwrap();
        let now = b.store.shard().await.unwrap().now_ms;
        let failing = [
            Guard::Version(key("there"), Version::new("z")),
            Guard::Absent(key("there")),
            Guard::Present(key("n")),
            Guard::Debit(debit("full", 2, 1)),
            Guard::Before(now),
            Guard::Since(now + 1_000_000),
            Guard::Epoch { number: 9, lease_ms: 0 },
            Guard::Within(queue("q"), 1),
            Guard::Fits { set: set("s"), member: "b".into(), max: 1 },
            Guard::Member(set("s"), "b".into()),
            Guard::Unread(queue("q"), EntryId::new("1-1")),
            Guard::Held(queue("q"), EntryId::new("1-1")),
        ];
        let held = b.held("h").await;
        let holding = [
            Guard::Debit(debit("one", 1, 9)),
            Guard::Absent(key("n")),
            Guard::Debit(debit("two", 1, 9)),
            Guard::Member(set("s"), "a".into()),
            Guard::Held(queue("h"), held.clone()),
        ];
        let writes = || {
            vec![
                put("out-record", "1{}"),
                join("out-set", "m", 1),
                enqueue("out-queue", "x"),
                Write::Add { counter: counter("one"), amount: 1, ends_ms: None },
                Write::Reply(inbox("out"), Bytes::from_static(b"r")),
            ]
        };
        for guard in &failing {
            for at in 0..=holding.len() {
                let mut guards = holding.to_vec();
                guards.insert(at, guard.clone());
                let refused = b.commit(with(guards, writes())).await;
                assert!(refused.is_err(), "{guard:?} at {at}: {refused:?}");
            }
        }
        let keys: Vec<String> = b.command(&["KEYS", "*out*"]).await;
        assert_eq!(keys, Vec::<String>::new());
        assert_eq!((b.used("one").await, b.used("two").await, b.used("full").await), (None, None, None));
        assert_eq!(b.store.backlog(&queue("h")).await.unwrap().held, 1);
        assert!(b.commit(with(holding.to_vec(), writes())).await.is_ok());
        assert_eq!((b.used("one").await, b.used("two").await), (Some(2), Some(1)));
    })
    .await;
}
