//! Interleavings that once violated a guarantee, on the store in memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use tickfleet_core::view::{Undecided, View};
use tickfleet_core::{Context, Decision, Query, Record, RecordKey, SetKey, Step, Transaction, Write};
use tickfleet_store::seam::memory::{ManualClock, MemoryOptions, MemoryStore};
use tickfleet_store::seam::{RunError, Store, Versions, run};

/// A decision. If `endless` is true, it requests reads without end.
struct Joins {
    endless: bool,
}

impl Decision for Joins {
    type Output = ();

    fn decide(&self, view: &View, context: &Context) -> Result<Step<()>, Undecided> {
        for number in 0.. {
            if !self.endless {
                break;
            }
            view.get(&Query::Size(SetKey::new(format!("s{number}"))))?;
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.write(Write::AddMember { set: SetKey::new("set"), member: "m".into(), score: 0, queue_of: None });
        Ok(Step::Commit(transaction, ()))
    }
}

#[tokio::test]
async fn an_endless_decision_does_not_fail_its_batch() {
    let clock = Arc::new(ManualClock::new(1_000));
    let store = MemoryStore::new(MemoryOptions { clock, lease_ms: 10_000, bytes_max: 0 });
    let shard = store.shard().await.unwrap();
    let batch = [Joins { endless: true }, Joins { endless: false }];
    let (_, results) = run(&store, &Versions::new("v"), shard, &batch).await.unwrap();
    assert!(matches!(results.first(), Some(Err(RunError::Contended(_)))));
    assert!(matches!(results.get(1), Some(Ok(receipt)) if receipt.committed.is_some()));
}

struct Adds;

impl Decision for Adds {
    type Output = u64;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<u64>, Undecided> {
        let key = RecordKey::new("session");
        let stored = view.record::<Hot>(&key)?;
        let count = stored.as_ref().map_or(1, |stored| stored.value.count + 1);
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard_read(&key, stored.as_ref()).put(&key, &Hot { count });
        assert!(context.conflicts.len() <= 1, "only the last state of a record is kept");
        Ok(Step::Commit(transaction, count))
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Hot {
    count: u64,
}

impl Record for Hot {
    const SCHEMA: u32 = 1;
}

#[tokio::test]
async fn decisions_about_a_hot_record_are_all_committed() {
    let clock = Arc::new(ManualClock::new(1_000));
    let store = MemoryStore::new(MemoryOptions { clock, lease_ms: 10_000, bytes_max: 0 });
    let shard = store.shard().await.unwrap();
    let batch: Vec<Adds> = (0..200).map(|_| Adds).collect();
    let (_, results) = run(&store, &Versions::new("v"), shard, &batch).await.unwrap();
    let mut counts: Vec<u64> = results.into_iter().map(|result| result.unwrap().result).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=200).collect::<Vec<_>>());
}
