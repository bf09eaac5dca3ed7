//! What the ends of this worker's calls did to facts of sessions, remembered for a while: if Redis has lost its last seconds,
//! nobody else knows (rule 8), and a call could begin that a lost fact forbids.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_model::limits;
use tickfleet_store::{Restatement, SettledCall, Store, StoreError, TurnName};
use tokio::time::Instant;

/// Ends of calls that are remembered at most, the newest.
const SAID_MAX: usize = 100_000;

/// What the ends of a worker's calls did to facts.
#[derive(Debug, Default)]
pub(crate) struct SaidFacts {
    said: Mutex<VecDeque<(Instant, Restatement)>>,
}

impl SaidFacts {
    /// Redis has these results, the first of them at `first`.
    pub(crate) fn settled(&self, name: &TurnName, first: usize, results: &[SettledCall], now_ms: i64) {
        for (position, result) in (first..).zip(results) {
            // Most calls have nothing to do with facts.
            let Some(end) = result.facts.clone().filter(|end| !end.changes.is_empty()) else { continue };
            let mut said = self.said.lock();
            said.push_back((Instant::now(), Restatement { name: name.clone(), position, end, ended_ms: now_ms }));
            if said.len() > SAID_MAX {
                said.pop_front();
            }
        }
    }

    /// What was said longer ago than `remembered` is forgotten: Redis has it, or has lost it with all around it.
    pub(crate) fn forget(&self, remembered: Duration) {
        let mut said = self.said.lock();
        while said.front().is_some_and(|(at, _)| at.elapsed() > remembered) {
            said.pop_front();
        }
    }

    /// Says everything to a Redis that may have lost it, in the order in which it happened.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be said again.
    pub(crate) async fn assert(&self, store: &Store, now_ms: i64) -> Result<(), StoreError> {
        let all: Vec<Restatement> = self.said.lock().iter().map(|(_, said)| said.clone()).collect();
        let mut lost = 0;
        for batch in all.chunks(limits::BATCH_ENTRIES_MAX) {
            lost += match store.restate(batch, now_ms).await {
                // One that Redis refuses costs itself alone: a heartbeat must not wait for it for ever.
                Err(error) if error.is_script_error() => one_by_one(store, batch, now_ms).await?,
                said => said?,
            };
        }
        if lost > 0 {
            tracing::warn!(lost, "session facts were missing from Redis; restored");
        }
        Ok(())
    }
}

async fn one_by_one(store: &Store, batch: &[Restatement], now_ms: i64) -> Result<usize, StoreError> {
    let mut lost = 0;
    for one in batch {
        match store.restate(std::slice::from_ref(one), now_ms).await {
            Err(error) if error.is_script_error() => {
                tracing::error!(%error, turn = %one.name, position = one.position, "Redis rejected the fact changes of a call");
            }
            said => lost += said?,
        }
    }
    Ok(lost)
}
