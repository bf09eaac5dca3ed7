//! Damaged keys, failures, missing scripts, restarts and the clock.

use super::*;
use tickfleet_core::CounterState;

#[tokio::test]
async fn a_key_of_the_wrong_type_fails_only_its_own_transaction() {
    let b = Bench::start().await;
    for name in ["r", "counters:tick", "seqs:acme"] {
        let _: i64 = b.command(&["SADD", &b.full(name), "x"]).await;
    }
    let results = b
        .commit_all(&[
            with(vec![Guard::Version(key("r"), Version::new("t"))], vec![]),
            with(vec![Guard::Debit(debit("a", 1, 1))], vec![]),
            with(
                vec![Guard::Debit(ConditionalDebit { counter: CounterKey::new("other", "a"), ..debit("a", 1, 1) })],
                vec![],
            ),
            with(vec![], vec![Write::Reply(inbox("a"), Bytes::from_static(b"r")), put("ok", "1{}")]),
            with(vec![], vec![join("r", "m", 1)]),
        ])
        .await;
    for at in [0, 1, 4] {
        assert!(
            matches!(&results[at], Err(Conflict::Failed { message }) if message.contains("WRONGTYPE")),
            "{results:?}"
        );
    }
    assert!(results[2].is_ok() && results[3].is_ok(), "{results:?}");
    assert!(b.record("ok").await.is_some());
    assert_eq!(b.record("r").await, None);
}

#[tokio::test]
async fn an_unreadable_counter_has_no_room_until_its_window_ends() {
    let b = Bench::start().await;
    let now = b.store.shard().await.unwrap().now_ms;
    let fixed = |name, start_ms, end_ms| {
        let window = Window::Fixed { start_ms, end_ms, length_ms: end_ms - start_ms };
        with(vec![Guard::Debit(ConditionalDebit { window, ..debit(name, 1, 5) })], vec![])
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
    assert!(b.commit(with(vec![Guard::Debit(debit("total", 2, 5))], vec![])).await.is_ok());
    assert_eq!(b.used("total").await, Some(2));
}

#[tokio::test]
async fn a_missing_permission_fails_the_batch_for_a_retry() {
    let b = Bench::start().await;
    let needs = || [with(vec![], vec![join("s", "m", 1)])];
    let _: String = b.command(&["ACL", "SETUSER", "default", "-zadd"]).await;
    let refused = b.store.commit(&needs()).await.unwrap_err();
    assert_eq!(refused.refusal().map(|refusal| refusal.as_str()), Some("noperm"), "{refused}");
    assert!(!refused.is_script_error(), "the batch is retried");
    let _: String = b.command(&["ACL", "SETUSER", "default", "+zadd"]).await;
    assert!(b.store.commit(&needs()).await.unwrap().results[0].is_ok());
}

#[tokio::test]
async fn a_flushed_function_is_reloaded() {
    let b = Bench::start().await;
    b.commit(with(vec![], vec![put("a", "1{}")])).await.unwrap();
    let _: String = b.command(&["FUNCTION", "FLUSH"]).await;
    b.commit(with(vec![Guard::Present(key("a"))], vec![])).await.unwrap();
    let libraries: Vec<redis::Value> = b.command(&["FUNCTION", "LIST"]).await;
    assert_eq!(libraries.len(), 1);
}

#[tokio::test]
async fn commits_run_as_a_script_when_the_function_cannot_load() {
    let b = Bench::start().await;
    // First, memory is too short to load the library. Then the user is not permitted to load it.
    for step in [vec!["CONFIG", "SET", "maxmemory", "1"], vec!["ACL", "SETUSER", "default", "-function|load"]] {
        let _: String = b.command(&step).await;
        for command in [["SCRIPT", "FLUSH"], ["FUNCTION", "FLUSH"]] {
            let _: String = b.command(&command).await;
        }
        let limited = ConditionalDebit { counters_max: 2, ..debit("l", 1, 9) };
        let done = b.commit(with(vec![Guard::Debit(limited)], vec![put("a", "1{}"), enqueue("q", "v")])).await.unwrap();
        assert_eq!(done.entries.len(), 1);
    }
    let libraries: Vec<redis::Value> = b.command(&["FUNCTION", "LIST"]).await;
    assert_eq!(libraries.len(), 0);
}

#[tokio::test]
async fn data_loss_starts_a_new_restart_epoch() {
    let mut b = Bench::start().await;
    let before = b.store.shard().await.unwrap();
    b.server.restart().await;
    b.raw = b.server.connection().await;
    let mut after = b.store.shard().await;
    while after.is_err() {
        after = b.store.shard().await;
    }
    let after = after.unwrap();
    assert_ne!(after.epoch, before.epoch);
    assert_eq!(after.epoch_began_ms, after.now_ms, "a client that knows another epoch shows that data was lost");
    assert_eq!(b.store.shard().await.unwrap().epoch, after.epoch);
    // The next epoch must be new, even after the restore of a backup. The server's clock has to advance first.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    change_state(&b, 1, "").await;
    change_state(&b, 2, "0").await;
    let restored = b.store.shard().await.unwrap();
    assert!(restored.epoch != after.epoch && restored.epoch_began_ms > after.epoch_began_ms, "{restored:?}");
}

async fn change_state(b: &Bench, at: usize, value: &str) {
    let state: String = b.command(&["HGET", &b.full("meta"), "state"]).await;
    let mut words: Vec<&str> = state.split(' ').collect();
    words[at] = value;
    let _: i64 = b.command(&["HSET", &b.full("meta"), "state", &words.join(" ")]).await;
}

#[tokio::test]
async fn shard_time_never_steps_back() {
    let b = Bench::start().await;
    let first = b.store.shard().await.unwrap().now_ms;
    let ahead = first + 3_600_000;
    let _: i64 = b.command(&["HSET", &b.full("meta"), "last_ms", &ahead.to_string()]).await;
    assert_eq!(b.store.shard().await.unwrap().now_ms, ahead);
    // The server's clock has to advance.
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    let next = b.store.shard().await.unwrap().now_ms;
    assert!(next >= ahead + 25 && next < ahead + 5_000, "{next}");
    let steps: (String, String) = {
        let meta = b.full("meta");
        (b.command(&["HGET", &meta, "steps"]).await, b.command(&["HGET", &meta, "step_ms"]).await)
    };
    assert_eq!(steps.0, "1");
    assert!(steps.1.parse::<i64>().unwrap() > 3_590_000);
}

#[tokio::test]
async fn memory_pressure_follows_the_last_sample() {
    let b = Bench::start().await;
    let calm = || with(vec![Guard::MemoryAvailable], vec![]);
    assert!(b.commit(calm()).await.is_ok());
    let (used, max) = b.store.sample_memory().await.unwrap();
    assert!(used > 0 && max == 0);
    let bound = (used + used / 10).to_string();
    let _: String = b.command(&["CONFIG", "SET", "maxmemory", &bound]).await;
    assert_eq!(b.store.sample_memory().await.unwrap().1.to_string(), bound);
    assert_eq!(b.commit(calm()).await, Err(Conflict::Pressure));
    assert!(b.store.shard().await.unwrap().pressure);
    // Transactions that free memory are committed even while memory is full.
    let _: String = b.command(&["CONFIG", "SET", "maxmemory", "1000"]).await;
    assert!(b.commit(with(vec![], vec![put("a", "1{}")])).await.is_ok());
    let _: i64 = b.command(&["HDEL", &b.full("meta"), "state"]).await;
    b.store.sample_memory().await.unwrap();
    assert_eq!(b.commit(calm()).await, Err(Conflict::Pressure));
}

#[tokio::test]
async fn a_batch_of_3000_transactions_commits() {
    let b = Bench::start().await;
    let batch: Vec<Transaction> = (0..3_000)
        .map(|at| {
            let name = format!("n{at}");
            let counters = vec![Guard::Debit(debit(&name, 1, 1)), Guard::Absent(key(&name))];
            let counters_max = |mut guards: Vec<Guard>| {
                if let Some(Guard::Debit(debit)) = guards.first_mut() {
                    debit.counters_max = 10_000;
                }
                guards
            };
            let reply = Write::Reply(inbox(&name), Bytes::from_static(b"r"));
            with(counters_max(counters), vec![put(&name, "1{}"), reply])
        })
        .collect();
    assert!(b.commit_all(&batch).await.iter().all(Result::is_ok));
    assert_eq!(b.used("n2999").await, Some(1));
    assert_eq!(b.command::<u64>(&["HLEN", &b.full("counters:tick")]).await, 3_000);
    assert_eq!(b.command::<u64>(&["HLEN", &b.full("seqs:acme")]).await, 3_000);
}
