//! Tests of the faults: each has its documented effect, and depends only on the seed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tickfleet_core::{Guard, RecordKey, Transaction, Version, Write};

use crate::seam::memory::faults::{Faults, FaultyStore};
use crate::seam::memory::*;

const START: i64 = 1_000_000;

fn bench(seed: u64) -> (Arc<ManualClock>, FaultyStore) {
    let clock = Arc::new(ManualClock::new(START));
    let options = MemoryOptions { clock: clock.clone(), ..MemoryOptions::default() };
    (clock, FaultyStore::new(options, seed, 10_000))
}

fn put(key: &str) -> Transaction {
    let mut transaction = Transaction::new(Version::new(format!("v-{key}")));
    transaction.write(Write::Put { key: RecordKey::new(key), content: "1{}".into(), ttl_ms: None });
    transaction
}

async fn has(store: &dyn Store, key: &str) -> bool {
    let value = store.read(&[Query::Record(RecordKey::new(key))]).await.unwrap().remove(0);
    matches!(value, Value::Record(Some(_)))
}

#[tokio::test]
async fn a_loss_drops_the_last_writes_and_starts_a_new_epoch() {
    let (clock, store) = bench(1);
    for key in ["a", "b", "c"] {
        store.commit(&[put(key)]).await.unwrap();
        clock.step(600);
    }
    store.lose(1_000);
    assert!(has(&store, "b").await && !has(&store, "c").await);
    let shard = store.shard().await.unwrap();
    assert_eq!((shard.epoch, shard.epoch_began_ms, shard.now_ms), (2, START + 1_800, START + 1_800));
    // The writes that a restart has lost do not reappear after the next restart.
    store.lose(0);
    assert!(has(&store, "b").await && !has(&store, "c").await);
    store.lose(60_000);
    assert!(has(&store, "b").await);
    assert_eq!(store.shard().await.unwrap().epoch, 4);
}

#[tokio::test]
async fn shard_time_continues_after_a_loss_and_a_clock_step_back() {
    let (clock, store) = bench(1);
    store.commit(&[put("a")]).await.unwrap();
    clock.step(-5_000);
    store.commit(&[put("b")]).await.unwrap();
    let before = store.shard().await.unwrap().now_ms;
    clock.step(10);
    store.lose(0);
    assert!(has(&store, "b").await);
    assert_eq!(store.shard().await.unwrap().now_ms, before + 10);
}

#[tokio::test]
async fn a_rejected_call_is_not_applied_but_an_unanswered_call_is() {
    let (_clock, store) = bench(1);
    store.set_faults(Faults { refused_per_mille: 1000, ..Faults::default() });
    store.commit(&[put("a")]).await.unwrap_err();
    assert!(!has(store.inner(), "a").await);
    store.set_faults(Faults { unanswered_per_mille: 1000, ..Faults::default() });
    store.commit(&[put("a")]).await.unwrap_err();
    assert!(has(store.inner(), "a").await);
}

#[tokio::test]
async fn the_same_seed_fails_the_same_calls() {
    let play = async |seed| {
        let (_clock, store) = bench(seed);
        let faults = Faults { latency_ms: 0..=1, refused_per_mille: 300, unanswered_per_mille: 300 };
        store.set_faults(faults);
        let mut answers = Vec::new();
        for n in 0..50 {
            answers.push(store.commit(&[put(&n.to_string())]).await.map(|_| ()).map_err(|error| error.to_string()));
        }
        answers
    };
    let [first, second, other] = [play(7).await, play(7).await, play(8).await];
    assert_eq!(first, second);
    assert_ne!(first, other);
    assert!(first.iter().any(Result::is_ok) && first.iter().filter(|answer| answer.is_err()).count() > 10);
}

#[tokio::test]
async fn a_memory_shortage_fails_the_memory_guard_until_it_ends() {
    let (_clock, store) = bench(1);
    store.commit(&[put("a")]).await.unwrap();
    let calm = Transaction { guards: vec![Guard::MemoryAvailable], ..Transaction::new(Version::new("v")) };
    for short in [true, false] {
        store.set_memory_short(short);
        store.sample_memory().await.unwrap();
        assert_eq!(store.commit(std::slice::from_ref(&calm)).await.unwrap().results[0].is_err(), short);
    }
}
