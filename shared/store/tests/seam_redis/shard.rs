//! Repetition, failures, missing scripts, restarts and the clock.

use super::*;
use tickfleet_core::CounterState;

#[tokio::test]
async fn a_repeated_transaction_is_recognized() {
    on_each(false, async |b| {
        let held = b.held("q").await;
        let guards = vec![Guard::Debit(debit("a", 1, 5)), Guard::Held(queue("q"), held)];
        let settle = Transaction { dedupe_record: Some(key("done")), ..with(guards, vec![put("done", "1{}")]) };
        let first = b.commit(settle.clone()).await.unwrap();
        assert!(!first.was_committed);
        let again = b.commit(settle.clone()).await.unwrap();
        assert!(again.was_committed && again.entries.is_empty());
        assert_eq!(b.used("a").await, Some(1));
        // A repetition is also recognized within a batch, without guards, and if the first commit makes a guard fail.
        let bare =
            Transaction { dedupe_record: Some(key("x")), ..with(vec![], vec![put("x", "1{}"), enqueue("e", "1")]) };
        let guards = vec![Guard::Absent(key("y"))];
        let reported = Transaction { dedupe_record: Some(key("y")), ..with(guards, vec![put("y", "1{}")]) };
        let results = b.commit_all(&[bare.clone(), bare, reported.clone(), reported]).await;
        let was_committed: Vec<_> = results.into_iter().map(|result| result.unwrap().was_committed).collect();
        assert_eq!(was_committed, vec![false, true, false, true]);
        b.commit(with(vec![], vec![put("done", "1{}")])).await.unwrap();
        assert_eq!(b.commit(settle).await, Err(Conflict::NotHeld));
    })
    .await;
}

#[tokio::test]
async fn a_key_of_the_wrong_type_fails_only_its_own_transaction() {
    on_each(false, async |b| {
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
    })
    .await;
}

#[tokio::test]
async fn a_missing_permission_fails_the_batch_for_a_retry() {
    on_each(false, async |b| {
        let needs = || [with(vec![], vec![join("s", "m", 1)])];
        let _: String = b.command(&["ACL", "SETUSER", "default", "-zadd"]).await;
        let refused = b.store.commit(&needs()).await.unwrap_err();
        assert_eq!(refused.refusal().map(|refusal| refusal.as_str()), Some("noperm"), "{refused}");
        assert!(!refused.is_script_error(), "the batch is retried");
        let _: String = b.command(&["ACL", "SETUSER", "default", "+zadd"]).await;
        assert!(b.store.commit(&needs()).await.unwrap().results[0].is_ok());
    })
    .await;
}

#[tokio::test]
async fn a_flushed_function_is_reloaded() {
    on_each(false, async |b| {
        b.commit(with(vec![], vec![put("a", "1{}")])).await.unwrap();
        let _: String = b.command(&["FUNCTION", "FLUSH"]).await;
        b.commit(with(vec![Guard::Present(key("a"))], vec![])).await.unwrap();
        let libraries: Vec<redis::Value> = b.command(&["FUNCTION", "LIST"]).await;
        assert_eq!(libraries.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn commits_run_as_a_script_when_the_function_cannot_load() {
    on_each(false, async |b| {
        // First, memory is too short to load the library. Then the user is not permitted to load it.
        for step in [vec!["CONFIG", "SET", "maxmemory", "1"], vec!["ACL", "SETUSER", "default", "-function|load"]] {
            let _: String = b.command(&step).await;
            for command in [["SCRIPT", "FLUSH"], ["FUNCTION", "FLUSH"]] {
                let _: String = b.command(&command).await;
            }
            let limited = ConditionalDebit { counters_max: 2, ..debit("l", 1, 9) };
            let done =
                b.commit(with(vec![Guard::Debit(limited)], vec![put("a", "1{}"), enqueue("q", "v")])).await.unwrap();
            assert_eq!(done.entries.len(), 1);
        }
        let libraries: Vec<redis::Value> = b.command(&["FUNCTION", "LIST"]).await;
        assert_eq!(libraries.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_restart_blocks_short_windows_and_held_counters() {
    on_each(true, async |mut b| {
        let before = b.store.shard().await.unwrap();
        assert_eq!(before.epoch_began_ms, 0);
        let fixed = |name: &str, length_ms| {
            let start_ms = before.now_ms - 1;
            let window = Window::Fixed { start_ms, end_ms: start_ms + length_ms, length_ms };
            with(vec![Guard::Debit(ConditionalDebit { window, ..debit(name, 1, 9) })], vec![])
        };
        let permit =
            || with(vec![Guard::Debit(ConditionalDebit { window: Window::Concurrency, ..debit("h", 1, 9) })], vec![]);
        for t in [fixed("f", 60_000), fixed("long", 60_001), permit()] {
            b.commit(t).await.unwrap();
        }
        b.server.restart().await;
        b.raw = b.server.connection().await;
        let mut after = b.store.shard().await;
        while after.is_err() {
            after = b.store.shard().await;
        }
        let after = after.unwrap();
        assert_eq!((before.epoch >> 32, after.epoch >> 32), (1, 2));
        assert!(after.epoch_began_ms > before.now_ms);
        let refused = |used, ends_ms, began_ms| CounterState { used, ends_ms, began_ms, queued: false };
        let start = before.now_ms - 1;
        assert_eq!(
            b.commit(fixed("f", 60_000)).await,
            Err(Conflict::LimitReached { counter: counter("f"), state: refused(9, start + 60_000, start) })
        );
        assert!(b.commit(fixed("long", 60_001)).await.is_ok());
        assert_eq!(
            b.commit(permit()).await,
            Err(Conflict::LimitReached { counter: counter("h"), state: refused(9, after.epoch_began_ms + 10_000, 0) })
        );
        let number = after.epoch;
        let began_ms = after.epoch_began_ms;
        let lasted = |lease_ms| with(vec![Guard::Epoch { number, lease_ms }], vec![]);
        assert!(b.commit(lasted(0)).await.is_ok());
        assert_eq!(b.commit(lasted(60_000)).await, Err(Conflict::Epoch { number, began_ms }));
        let began = (after.epoch_began_ms - 10_000).to_string();
        change_state(&b, 3, &began).await;
        assert!(b.commit(permit()).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn data_loss_starts_a_new_restart_epoch() {
    on_each(false, async |mut b| {
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
    })
    .await;
}

async fn change_state(b: &Bench, at: usize, value: &str) {
    let state: String = b.command(&["HGET", &b.full("meta"), "state"]).await;
    let mut words: Vec<&str> = state.split(' ').collect();
    words[at] = value;
    let _: i64 = b.command(&["HSET", &b.full("meta"), "state", &words.join(" ")]).await;
}

#[tokio::test]
async fn shard_time_never_steps_back() {
    on_each(false, async |b| {
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
    })
    .await;
}

#[tokio::test]
async fn memory_pressure_follows_the_last_sample() {
    on_each(false, async |b| {
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
    })
    .await;
}

#[tokio::test]
async fn a_batch_of_3000_transactions_commits() {
    on_each(false, async |b| {
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
    })
    .await;
}
