//! The history of a shard, in memory and on Redis, with a clock that the test sets.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "conformance/server.rs"]
mod server;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tickfleet_core::{Transaction, Write, keys};
use tickfleet_store::seam::memory::{ManualClock, MemoryOptions, MemoryStore};
use tickfleet_store::{HistoryStep, Point, ShardHistory, Store, StoreOptions};

use server::Server;

const MINUTE_MS: i64 = 60_000;
const BEGIN_MS: i64 = 1_767_571_200_000;

enum Clock {
    Memory(Arc<ManualClock>),
    Redis(Box<Server>),
}

struct Shard {
    store: Store,
    other: Store,
    clock: Clock,
}

impl Shard {
    async fn both() -> [Self; 2] {
        let options = Arc::new(StoreOptions::default());
        let clock = Arc::new(ManualClock::new(BEGIN_MS));
        let memory = MemoryStore::new(MemoryOptions { clock: clock.clone(), ..MemoryOptions::default() });
        let server = Server::start(BEGIN_MS).await;
        let on_redis = || Store::open(&server.url(), 0, options.clone()).unwrap();
        let (store, other) = (on_redis(), on_redis());
        let in_memory = || Store::in_memory(memory.clone(), 0, options.clone());
        let both = [
            Self { store: in_memory(), other: in_memory(), clock: Clock::Memory(clock) },
            Self { store, other, clock: Clock::Redis(Box::new(server)) },
        ];
        for shard in &both {
            shard.store.ensure_groups().await.unwrap();
        }
        both
    }

    async fn at(&mut self, now_ms: i64) {
        match &mut self.clock {
            Clock::Memory(clock) => clock.set(now_ms),
            Clock::Redis(server) => server.set_clock(now_ms).await,
        }
    }

    async fn write(&self, writes: Vec<Write>) {
        let mut transaction = Transaction::new(self.store.versions().draw());
        transaction.writes = writes;
        let batch = self.store.seam().commit(&[transaction]).await.unwrap();
        batch.results.into_iter().for_each(|result| drop(result.unwrap()));
    }

    async fn calls(&self, outcome: &str, count: usize) {
        let entry = format!(
            r#"{{"action":"TOOL_CALL","entity_id":"echo","actor_id":"kelly","tenant":"acme","meta":{{"outcome":"{outcome}"}}}}"#
        );
        let append = || Write::Append {
            log: keys::audit(),
            fields: vec![("audit".into(), entry.clone().into())],
            max_entries: 1_000_000,
        };
        self.write((0..count).map(|_| append()).collect()).await;
    }

    async fn turn(&self) {
        self.write(vec![Write::Enqueue(keys::turns(), vec![("turn".into(), "{}".into())])]).await;
    }

    async fn sample(&self) -> bool {
        self.store.sample_history(&[]).await.unwrap()
    }

    async fn history(&self, step: HistoryStep) -> ShardHistory {
        self.store.history(step, 0, i64::MAX / 2).await.unwrap()
    }

    async fn minutes(&self) -> Vec<(i64, Point)> {
        let points = self.history(HistoryStep::Minute).await.points;
        points.into_iter().map(|(at_ms, point)| ((at_ms - BEGIN_MS) / MINUTE_MS, point)).collect()
    }
}

/// The drop after `polls` polls simulates a killed process.
async fn kill_after(polls: usize, future: impl Future) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        future.as_mut().poll(context).map(drop)
    })
    .await;
}

fn ok_calls(points: &[(i64, Point)]) -> u64 {
    points.iter().map(|(_, point)| point.calls.ok).sum()
}

#[tokio::test]
async fn a_minute_counts_calls_by_class_turns_and_waiting_turns() {
    for mut shard in Shard::both().await {
        assert!(shard.sample().await, "the first sample notes the position");
        assert_eq!(shard.minutes().await, []);
        for (outcome, count) in [("ok", 3), ("permanent", 2), ("denied", 1), ("outcome_unknown", 1), ("expired", 1)] {
            shard.calls(outcome, count).await;
        }
        shard
            .write(vec![Write::Append {
                log: keys::audit(),
                fields: vec![("audit".into(), r#"{"action":"PAUSE"}"#.into())],
                max_entries: 1_000_000,
            }])
            .await;
        shard.turn().await;
        shard.turn().await;
        shard.at(BEGIN_MS + MINUTE_MS + 10).await;
        assert!(shard.sample().await);
        assert!(!shard.sample().await, "the minute has a sample");
        let points = shard.minutes().await;
        let [(0, point)] = points[..] else { panic!("{points:?}") };
        let calls = point.calls;
        assert_eq!((calls.ok, calls.failed, calls.refused, calls.unknown), (3, 2, 2, 1));
        assert_eq!((point.turns, point.waiting, point.running), (Some(2), Some(2), Some(0)));
        let hours = shard.history(HistoryStep::Hour).await;
        assert_eq!(hours.points.into_iter().collect::<Vec<_>>(), [(BEGIN_MS, point)]);
        assert_eq!(hours.sampled_upto_ms, Some(BEGIN_MS + MINUTE_MS));
    }
}

#[tokio::test]
async fn a_takeover_from_a_killed_scheduler_counts_each_call_once() {
    for mut shard in Shard::both().await {
        shard.sample().await;
        for round in 1..30_i64 {
            shard.calls("ok", 5).await;
            shard.at(BEGIN_MS + round * MINUTE_MS + 10).await;
            kill_after(usize::try_from(round).unwrap() / 2, shard.store.sample_history(&[])).await;
            let (one, two) = tokio::join!(shard.other.sample_history(&[]), shard.store.sample_history(&[]));
            assert!(!(one.unwrap() && two.unwrap()), "two samples of one minute");
            let points = shard.minutes().await;
            assert_eq!(ok_calls(&points), 5 * round.unsigned_abs(), "round {round}: {points:?}");
            assert_eq!(points.len(), usize::try_from(round).unwrap());
        }
    }
}

#[tokio::test]
async fn minutes_without_a_scheduler_have_calls_but_no_turns_and_slots() {
    for mut shard in Shard::both().await {
        shard.sample().await;
        shard.at(BEGIN_MS + 2 * MINUTE_MS).await;
        shard.calls("ok", 1).await;
        shard.turn().await;
        shard.at(BEGIN_MS + 5 * MINUTE_MS).await;
        shard.sample().await;
        let points = shard.minutes().await;
        let found: Vec<_> =
            points.iter().map(|(at, point)| (*at, point.calls.ok, point.turns, point.waiting)).collect();
        assert_eq!(found, [(2, 1, None, None), (4, 0, None, Some(1))]);
    }
}

#[tokio::test]
async fn a_clock_jump_creates_a_gap_and_a_step_back_changes_nothing() {
    for mut shard in Shard::both().await {
        shard.sample().await;
        shard.calls("ok", 1).await;
        shard.at(BEGIN_MS + 600 * MINUTE_MS).await;
        shard.calls("ok", 2).await;
        assert!(shard.sample().await);
        shard.at(BEGIN_MS + MINUTE_MS).await;
        shard.calls("ok", 4).await;
        assert!(!shard.sample().await, "shard time does not step back");
        shard.at(BEGIN_MS + 3 * MINUTE_MS).await;
        assert!(shard.sample().await, "two minutes later by any clock");
        let points = shard.minutes().await;
        assert_eq!(ok_calls(&points), 7, "{points:?}");
        let calls: Vec<_> = points.iter().map(|(at, point)| (*at, point.calls.ok)).collect();
        assert_eq!(calls, [(0, 1), (599, 2), (600, 4), (601, 0)]);
    }
}

#[tokio::test]
async fn old_minutes_expire_and_hours_stay() {
    for mut shard in Shard::both().await {
        shard.sample().await;
        shard.calls("ok", 1).await;
        shard.at(BEGIN_MS + MINUTE_MS).await;
        shard.sample().await;
        let day_ms = 24 * 60 * MINUTE_MS;
        shard.at(BEGIN_MS + day_ms + 4 * 60 * MINUTE_MS).await;
        assert_eq!(shard.minutes().await, []);
        let hours = shard.history(HistoryStep::Hour).await.points;
        assert_eq!(hours.values().map(|point| point.calls.ok).collect::<Vec<_>>(), [1]);
        shard.at(BEGIN_MS + 36 * day_ms).await;
        assert_eq!(shard.history(HistoryStep::Hour).await.points.len(), 0);
    }
}

#[tokio::test]
async fn a_sample_beyond_its_bound_estimates_the_call_classes() {
    let [mut shard, _] = Shard::both().await;
    shard.sample().await;
    for _ in 0..50 {
        shard.calls("ok", 450).await;
        shard.calls("transient", 50).await;
    }
    shard.at(BEGIN_MS + MINUTE_MS).await;
    shard.sample().await;
    let calls = shard.minutes().await[0].1.calls;
    assert_eq!((calls.ok, calls.failed), (22_500, 2_500));
}

#[tokio::test]
async fn a_sample_records_the_policy_generation() {
    for mut shard in Shard::both().await {
        for generation in [5, 5, 9] {
            shard.write(vec![Write::PolicyGeneration(generation)]).await;
            shard.sample().await;
            let now_ms = shard.store.now_ms().await.unwrap();
            shard.at(now_ms + MINUTE_MS).await;
        }
        assert_eq!(shard.history(HistoryStep::Minute).await.generations, [5, 9]);
    }
}
