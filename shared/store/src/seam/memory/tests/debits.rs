#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

#[tokio::test]
async fn a_stamped_transaction_notes_its_debits() {
    let mut bench = Bench::new();
    let fixed = Window::Fixed { start_ms: START, end_ms: START + 10, length_ms: 10 };
    let mut transaction = Transaction { stamped: true, ..bench.transaction() };
    transaction
        .guard(Guard::Debit(debit("a", 2, 5, fixed)))
        .guard(Guard::Debit(debit("b", 0, 5, Window::Concurrency)))
        .guard(Guard::Debit(debit("a", 1, 5, fixed)))
        .write(put("before", "1{}", None))
        .write(Write::Enqueue(StreamKey::new("q1"), fields("x")))
        .write(put("after", "1{}", None));
    bench.commit(&transaction).await.unwrap();
    let debited = format!("2:{end}:{START},0:0:0,3:{end}:{START}", end = START + 10);
    assert_eq!(bench.text("before").await.unwrap(), format!("v1 - {debited} 1{{}}"));
    assert_eq!(bench.text("after").await.unwrap(), format!("v1 {START}-0 {debited} 1{{}}"));
    let taken = bench.store.take(&take(1, 0)).await.unwrap();
    assert_eq!(taken[0].fields[0], ("d".into(), Bytes::from(debited)));
}

#[tokio::test]
async fn counters_beyond_the_bound_share_one_overflow_counter() {
    let mut bench = Bench::new();
    let debit = |counter: &str| Guard::Debit(debit(counter, 1, 1, Window::Total));
    bench.guard(vec![debit("a"), debit("b"), debit("c")]).await.unwrap();
    let others = CounterKey::new("limit", "~");
    assert_eq!(bench.counter(&others).await.unwrap().used, 1);
    let c = CounterKey::new("limit", "c");
    let state = CounterState { used: 1, ..CounterState::default() };
    let conflict = Err(Conflict::LimitReached { counter: c.clone(), state });
    assert_eq!(bench.guard(vec![debit("c")]).await, conflict);
    assert_eq!(bench.counter(&c).await, None);
    bench.write(vec![Write::Add { counter: c.clone(), amount: -3, ends_ms: None }]).await;
    assert_eq!(bench.counter(&others).await.unwrap().used, 0);
    // The bound also applies to the sum of two debits in one transaction.
    assert!(bench.guard(vec![debit("c"), debit("d")]).await.is_err());
    bench.write(vec![Write::DeleteCounter(CounterKey::new("limit", "a"))]).await;
    bench.guard(vec![debit("c")]).await.unwrap();
    assert_eq!(bench.counter(&c).await.unwrap().used, 1);
}

#[tokio::test]
async fn a_shadow_limit_debits_beyond_its_bound_and_reports_it() {
    let mut bench = Bench::new();
    let guard = Guard::Debit(ConditionalDebit { shadow: true, ..debit("a", 2, 1, Window::Total) });
    let committed = bench.guard(vec![guard]).await.unwrap();
    assert_eq!(committed.shadowed, [CounterKey::new("limit", "a")]);
    assert_eq!(bench.counter(&CounterKey::new("limit", "a")).await.unwrap().used, 2);
}

#[tokio::test]
async fn new_turns_wait_behind_the_throttle_queue() {
    let mut bench = Bench::new();
    let key = CounterKey::new("limit", "a");
    let set = keys::throttle_queue(&key);
    let queue_of = Some(key.clone());
    let add = Write::AddMember { set: set.clone(), member: "m".into(), score: 1, queue_of: queue_of.clone() };
    bench.write(vec![add]).await;
    let new = Guard::Debit(ConditionalDebit { behind_queue: true, ..debit("a", 1, 5, Window::Total) });
    let state = CounterState { queued: true, ..CounterState::default() };
    assert_eq!(bench.guard(vec![new.clone()]).await, Err(Conflict::LimitReached { counter: key.clone(), state }));
    bench.guard(vec![Guard::Debit(debit("a", 1, 5, Window::Total))]).await.unwrap();
    assert!(bench.counter(&key).await.unwrap().queued);
    bench.write(vec![Write::RemoveMember { set, member: "m".into(), queue_of }]).await;
    bench.guard(vec![new]).await.unwrap();
}

#[tokio::test]
async fn a_commit_debits_the_window_current_at_commit_time() {
    let mut bench = Bench::new();
    let fixed = |start_ms, end_ms| Window::Fixed { start_ms, end_ms, length_ms: 10 };
    let conflict = Err(Conflict::Time { now_ms: START });
    for window in [fixed(START + 1, START + 11), Window::Day { start_ms: 0, end_ms: START }] {
        assert_eq!(bench.guard(vec![Guard::Debit(debit("a", 1, 5, window))]).await, conflict, "{window:?}");
    }
    for (window, ends_ms) in [
        (fixed(START - 10, START), START + 10),
        (fixed(START - 9, START + 1), START + 1),
        (fixed(START - 38, START - 28), START + 2),
    ] {
        let mut bench = Bench::new();
        bench.guard(vec![Guard::Debit(debit("a", 1, 5, window))]).await.unwrap();
        let used = CounterState { used: 1, ends_ms, began_ms: ends_ms - 10, queued: false };
        assert_eq!(bench.counter(&CounterKey::new("limit", "a")).await, Some(used));
    }
}
