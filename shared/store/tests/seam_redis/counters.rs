//! Counters: debits, windows, queues, shadow mode, and the counters' state within a batch.

use super::*;
use tickfleet_core::CounterState;
use tickfleet_core::record::{Debited, RecordText};

fn guarded(debit: ConditionalDebit) -> Transaction {
    with(vec![Guard::Debit(debit)], vec![])
}

async fn state(b: &Bench, name: &str) -> Option<CounterState> {
    match b.read(Query::Counter(counter(name))).await {
        Value::Counter(state) => state,
        other => panic!("{other:?}"),
    }
}

fn no_room(name: &str, used: u64) -> Result<Committed, Conflict> {
    Err(Conflict::LimitReached { counter: counter(name), state: CounterState { used, ..Default::default() } })
}

#[tokio::test]
async fn a_counter_enforces_its_bound_within_and_across_batches() {
    on_each(false, async |b| {
        let results =
            b.commit_all(&[guarded(debit("a", 2, 3)), guarded(debit("a", 2, 3)), guarded(debit("a", 1, 3))]).await;
        assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
        assert_eq!(results[1], no_room("a", 2));
        assert_eq!(b.commit(guarded(debit("a", 1, 3))).await, no_room("a", 3));
        assert_eq!(b.used("a").await, Some(3));
        let twice = with(vec![Guard::Debit(debit("b", 1, 1)), Guard::Debit(debit("b", 1, 1))], vec![]);
        assert_eq!(b.commit(twice).await, no_room("b", 1));
        assert_eq!(b.used("b").await, None);
        let refused = with(vec![Guard::Debit(debit("c", 5, 5)), Guard::Present(key("n"))], vec![]);
        let results = b.commit_all(&[refused, guarded(debit("c", 5, 5))]).await;
        assert!(results[0].is_err() && results[1].is_ok());
        assert_eq!(b.used("c").await, Some(5));
    })
    .await;
}

#[tokio::test]
async fn windows_open_and_end() {
    on_each(false, async |b| {
        let now = b.store.shard().await.unwrap().now_ms;
        let fixed = |start_ms, end_ms| ConditionalDebit {
            window: Window::Fixed { start_ms, end_ms, length_ms: end_ms - start_ms },
            ..debit("f", 1, 1)
        };
        let running = fixed(now - 1_000, now + 100_000);
        assert!(b.commit(guarded(running.clone())).await.is_ok());
        let used = CounterState { used: 1, ends_ms: now + 100_000, began_ms: now - 1_000, queued: false };
        assert_eq!(state(&b, "f").await, Some(used));
        let full = Err(Conflict::LimitReached { counter: counter("f"), state: used });
        assert_eq!(b.commit(guarded(running)).await, full);
        // If the decision has another window length, the current window keeps its end.
        assert_eq!(b.commit(guarded(fixed(now - 10, now + 50_000))).await, full);
        assert_eq!(b.commit(guarded(fixed(now - 100, now - 50))).await, full, "as of the window that runs");
        let early = b.commit(guarded(fixed(now + 90_000, now + 95_000))).await;
        assert!(matches!(early, Err(Conflict::Time { .. })), "{early:?}");
        // The counter's last window ended after the begin of the new one, because the length has changed.
        store_counter(&b, "g", 9.0, now - 50, now - 500).await;
        let length = ConditionalDebit { counter: counter("g"), ..fixed(now - 100, now + 99_900) };
        assert!(b.commit(guarded(length)).await.is_ok());
        let state_g = state(&b, "g").await.unwrap();
        assert_eq!((state_g.used, state_g.ends_ms), (1, now + 199_900));
        assert!(state_g.began_ms >= now);
        // `d`: only the time zone changed, so the day continues. `e`: the day has ended, so a new day opens.
        let day = Window::Day { start_ms: now - 1_000, end_ms: now + 80_000_000 };
        store_counter(&b, "d", 3.0, now - 50, now - 500).await;
        store_counter(&b, "e", 3.0, now - 1_000, now - 5_000).await;
        for name in ["d", "e"] {
            assert!(b.commit(guarded(ConditionalDebit { window: day, ..debit(name, 1, 4) })).await.is_ok());
        }
        let d = state(&b, "d").await.unwrap();
        let e = state(&b, "e").await.unwrap();
        assert_eq!((d.used, d.ends_ms, d.began_ms), (4, now + 80_000_000, now - 500));
        assert_eq!((e.used, e.ends_ms, e.began_ms), (1, now + 80_000_000, now - 1_000));
    })
    .await;
}

async fn store_counter(b: &Bench, name: &str, used: f64, ends_ms: i64, began_ms: i64) {
    let stored: Vec<u8> =
        [used, ends_ms as f64, began_ms as f64, 0.0].iter().flat_map(|number: &f64| number.to_le_bytes()).collect();
    let mut command = redis::cmd("HSET");
    command.arg(b.full("counters:tick")).arg(name).arg(stored);
    let _: i64 = command.query_async(&mut b.raw.clone()).await.unwrap();
}

#[tokio::test]
async fn a_rolling_counter_drops_amounts_older_than_its_window() {
    on_each(false, async |b| {
        let rolling = |amount| ConditionalDebit { window: Window::Rolling { length_ms: 400 }, ..debit("r", amount, 3) };
        assert!(b.commit(guarded(rolling(2))).await.is_ok());
        let first = state(&b, "r").await.unwrap();
        assert_eq!(first.used, 2);
        let refused = b.commit(guarded(rolling(2))).await;
        assert_eq!(refused, Err(Conflict::LimitReached { counter: counter("r"), state: first }));
        // A bucket expires by the server's clock, so the test has to wait.
        tokio::time::sleep(std::time::Duration::from_millis(120)).await;
        assert!(b.commit(guarded(rolling(1))).await.is_ok());
        assert_eq!(state(&b, "r").await.map(|state| (state.used, state.ends_ms)), Some((3, first.ends_ms)));
        // A returned amount goes to the bucket of its debit. Without an end, the amount goes to the newest bucket.
        let add = |amount, ends_ms| with(vec![], vec![Write::Add { counter: counter("r"), amount, ends_ms }]);
        b.commit(add(-1, Some(first.ends_ms))).await.unwrap();
        b.commit(add(-5, None)).await.unwrap();
        b.commit(add(-1, Some(1))).await.unwrap();
        assert_eq!(b.used("r").await, Some(1));
        // The amounts expire by the server's clock, so the test has to wait.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        assert!(b.commit(guarded(rolling(3))).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn a_new_turn_queues_behind_waiting_turns() {
    on_each(false, async |b| {
        let queue_of = Some(counter("a"));
        let waits = Write::AddMember { set: set("w"), member: "m".into(), score: 7, queue_of: queue_of.clone() };
        let leaves = Write::RemoveMember { set: set("w"), member: "m".into(), queue_of };
        let new = || guarded(ConditionalDebit { behind_queue: true, ..debit("a", 1, 9) });
        let results = b.commit_all(&[with(vec![], vec![waits]), new(), guarded(debit("a", 1, 9))]).await;
        let queued = CounterState { queued: true, ..Default::default() };
        assert_eq!(results[1], Err(Conflict::LimitReached { counter: counter("a"), state: queued }));
        assert!(results[2].is_ok());
        assert!(matches!(b.commit(new()).await, Err(Conflict::LimitReached { .. })));
        let results = b.commit_all(&[with(vec![], vec![leaves]), new()]).await;
        assert!(results[1].is_ok());
        assert_eq!(b.read(Query::Size(set("w"))).await, Value::Size(0));
    })
    .await;
}

#[tokio::test]
async fn a_shadow_limit_debits_beyond_its_bound_and_reports_it() {
    on_each(false, async |b| {
        let shadow = |name| Guard::Debit(ConditionalDebit { shadow: true, ..debit(name, 2, 1) });
        let done =
            b.commit(with(vec![shadow("a"), Guard::Debit(debit("b", 1, 1)), shadow("c")], vec![enqueue("q", "x")]));
        let done = done.await.unwrap();
        assert_eq!(done.shadowed, vec![counter("a"), counter("c")]);
        assert_eq!(done.entries.len(), 1);
        assert_eq!(b.used("a").await, Some(2));
    })
    .await;
}

#[tokio::test]
async fn counters_beyond_the_bound_share_one_overflow_counter() {
    on_each(false, async |b| {
        let limited = |name, amount| ConditionalDebit { counters_max: 2, ..debit(name, amount, 3) };
        let results = b
            .commit_all(&[
                guarded(limited("a", 1)),
                with(vec![Guard::Debit(limited("x", 1)), Guard::Present(key("n"))], vec![]),
                guarded(limited("b", 1)),
                guarded(limited("c", 2)),
                guarded(limited("d", 2)),
                with(vec![], vec![Write::Add { counter: counter("d"), amount: -1, ends_ms: None }]),
                guarded(limited("d", 2)),
            ])
            .await;
        assert_eq!(results[4], no_room("d", 2));
        assert!([0, 2, 3, 5, 6].iter().all(|at: &usize| results[*at].is_ok()), "{results:?}");
        let found = (b.used("a").await, b.used("b").await, b.used("c").await, b.used("d").await, b.used("~").await);
        assert_eq!(found, (Some(1), Some(1), None, None, Some(3)));
        assert_eq!(b.commit(guarded(limited("e", 1))).await, no_room("e", 3));
        let gone = with(vec![], vec![Write::DeleteCounter(counter("a"))]);
        assert!(b.commit_all(&[gone, guarded(limited("e", 1))]).await.iter().all(Result::is_ok));
        assert_eq!((b.used("a").await, b.used("e").await), (None, Some(1)));
    })
    .await;
}

#[tokio::test]
async fn amounts_are_added_and_returned() {
    on_each(false, async |b| {
        let add = |amount, ends_ms| Write::Add { counter: counter("a"), amount, ends_ms };
        b.commit(with(vec![], vec![add(5, None), add(-2, None), add(9, Some(77))])).await.unwrap();
        assert_eq!(b.used("a").await, Some(3));
        b.commit(with(vec![], vec![add(-9, None), add(4, Some(0))])).await.unwrap();
        assert_eq!(b.used("a").await, Some(4));
    })
    .await;
}

#[tokio::test]
async fn a_stamped_transaction_records_its_debits() {
    on_each(false, async |b| {
        let now = b.store.shard().await.unwrap().now_ms;
        let window = Window::Day { start_ms: now - 9, end_ms: now + 90_000 };
        let guards = vec![
            Guard::Debit(debit("a", 2, 9)),
            Guard::Absent(key("r")),
            Guard::Debit(ConditionalDebit { window, ..debit("b", 1, 9) }),
        ];
        let stamped = Transaction { stamped: true, ..with(guards, vec![enqueue("q", "x"), put("r", "1{}")]) };
        let entry = b.commit(stamped).await.unwrap().entries.pop().unwrap();
        let Value::Record(Some(stored)) = b.read(Query::Record(key("r"))).await else { panic!() };
        let text = RecordText::parse(&stored).unwrap();
        let debited = |used, began_ms, ends_ms| Debited { used, ends_ms, began_ms };
        let debits = vec![debited(2, 0, 0), debited(1, now - 9, now + 90_000)];
        assert_eq!((text.entry.as_ref(), &text.debits), (Some(&entry), &debits));
        let Value::Entry(Some(fields)) = b.read(Query::Entry(queue("q"), entry)).await else { panic!() };
        let d = Bytes::from(Debited::render_all(&debits));
        assert_eq!(fields, vec![(arc("d"), d), (arc("f"), Bytes::from_static(b"x"))]);
    })
    .await;
}

#[tokio::test]
async fn an_unreadable_counter_has_no_room_until_its_window_ends() {
    on_each(false, async |b| {
        let now = b.store.shard().await.unwrap().now_ms;
        let fixed = |name, start_ms, end_ms| {
            let window = Window::Fixed { start_ms, end_ms, length_ms: end_ms - start_ms };
            guarded(ConditionalDebit { window, ..debit(name, 1, 5) })
        };
        for (name, text) in [("short", "foreign".to_owned()), ("long", "x".repeat(33))] {
            let _: u64 = b.command(&["HSET", &b.full("counters:tick"), name, &text]).await;
            let ends_ms = now + 1_000;
            let began_ms = now - 1_000;
            let full = CounterState { used: 1 << 53, ends_ms, began_ms, queued: false };
            let other = fixed("other", began_ms, ends_ms);
            let results = b.commit_all(&[fixed(name, began_ms, ends_ms), other]).await;
            assert_eq!(results[0], Err(Conflict::LimitReached { counter: counter(name), state: full }));
            assert!(results[1].is_ok(), "{results:?}");
            assert!(b.commit(fixed(name, began_ms, ends_ms)).await.is_err(), "it is used up for the whole window");
        }
        while b.store.shard().await.unwrap().now_ms < now + 1_000 {
            // A window ends only by the passage of time.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        for name in ["short", "long"] {
            assert!(b.commit(fixed(name, now + 1_000, now + 100_000)).await.is_ok());
            assert_eq!(b.used(name).await, Some(1));
        }
        // An unreadable counter without a window counts as unused, and its next change makes it readable.
        let _: u64 = b.command(&["HSET", &b.full("counters:tick"), "total", "foreign"]).await;
        assert!(b.commit(guarded(debit("total", 2, 5))).await.is_ok());
        assert_eq!(b.used("total").await, Some(2));
    })
    .await;
}
