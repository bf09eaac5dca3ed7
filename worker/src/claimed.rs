//! The effects that calls of this worker have claimed, and what it said of them, remembered for a while: if Redis has lost
//! its last seconds, nobody else knows (rule 8), and an equal call could begin.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_model::limits;
use tickfleet_store::{Concluded, Conclusion, EffectEnd, Store, StoreError};
use tokio::time::Instant;

/// Claims that are remembered after the worker's part in them has ended, at most: the newest.
const LEFT_MAX: usize = 100_000;
/// Bytes of their results; beyond, the oldest are forgotten.
const LEFT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A claim that Redis has confirmed.
#[derive(Debug, Clone)]
pub(crate) struct ClaimedEffect {
    /// What came of its call. For an open one, the window is that of its end to come.
    pub(crate) said: Conclusion,
    /// Until when its turn can be under way, ms of shard time.
    pub(crate) deadline_ms: i64,
}

#[derive(Debug, Default)]
struct Memory {
    /// By effect: one call at a time has it.
    held: HashMap<String, ClaimedEffect>,
    left: VecDeque<(Instant, ClaimedEffect)>,
    bytes: usize,
}

/// The claims of a worker.
#[derive(Debug, Default)]
pub(crate) struct ClaimedEffects {
    memory: Mutex<Memory>,
}

impl ClaimedEffect {
    fn bytes(&self) -> usize {
        match &self.said.end {
            EffectEnd::Ended(result) | EffectEnd::Unknown(result) => result.len(),
            EffectEnd::Undone | EffectEnd::Open => 0,
        }
    }

    /// What to say of it so long after it was said first; none where its time is over. An open claim is kept as `claim`
    /// keeps it: while its turn may be under way, and its window beyond.
    fn statement(&self, now_ms: i64, age: Duration) -> Option<Conclusion> {
        let window_ms = match self.said.end {
            EffectEnd::Open => (self.deadline_ms - now_ms).max(0).saturating_add(self.said.window_ms),
            _ => self.said.window_ms - i64::try_from(age.as_millis()).unwrap_or(i64::MAX),
        };
        (window_ms > 0).then(|| Conclusion { window_ms, ..self.said.clone() })
    }
}

impl Memory {
    fn leave(&mut self, claimed: ClaimedEffect) {
        self.bytes += claimed.bytes();
        self.left.push_back((Instant::now(), claimed));
        while self.left.len() > LEFT_MAX || self.bytes > LEFT_BYTES_MAX {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((_, gone)) = self.left.pop_front() {
            self.bytes -= gone.bytes();
        }
    }
}

impl ClaimedEffects {
    /// Redis has confirmed a claim.
    pub(crate) fn hold(&self, claimed: ClaimedEffect) {
        self.memory.lock().held.insert(claimed.said.effect.to_string(), claimed);
    }

    /// The worker's part in a claim has ended: with what came of the call, or, where it goes on elsewhere or later, as
    /// open as it was.
    pub(crate) fn leave(&self, said: &Conclusion) {
        let mut memory = self.memory.lock();
        if let Some(claimed) = memory.held.remove(&said.effect.to_string()) {
            memory.leave(ClaimedEffect { said: said.clone(), ..claimed });
        }
    }

    /// The worker has no part in a claim any more, and nothing to say of it.
    pub(crate) fn give_up(&self, said: &Conclusion) {
        self.memory.lock().held.remove(&said.effect.to_string());
    }

    /// What was left longer ago than `remembered` is forgotten: Redis has it, or has lost it with all around it.
    pub(crate) fn forget(&self, remembered: Duration) {
        let mut memory = self.memory.lock();
        while memory.left.front().is_some_and(|(at, _)| at.elapsed() > remembered) {
            memory.pop();
        }
    }

    /// Everything, in the order in which it happened: of one effect, the last statement counts.
    fn all(&self, now_ms: i64) -> Vec<Conclusion> {
        let memory = self.memory.lock();
        let left = memory.left.iter().map(|(at, claimed)| (at.elapsed(), claimed));
        let held = memory.held.values().map(|claimed| (Duration::ZERO, claimed));
        left.chain(held).filter_map(|(age, claimed)| claimed.statement(now_ms, age)).collect()
    }

    /// Says everything to a Redis that may have lost it. Answers of how many effects another call has the claim by now.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be said again.
    pub(crate) async fn assert(&self, store: &Store, now_ms: i64) -> Result<usize, StoreError> {
        let mut others = 0;
        for batch in batches(&self.all(now_ms)) {
            for (said, concluded) in batch.iter().zip(say(store, batch).await?) {
                if concluded == Some(Concluded::Others) && said.end != EffectEnd::Undone {
                    others += 1;
                    tracing::error!(call = said.by.call(), effect = %said.effect, "Redis lost an effect claim, and an equal call claimed it before this worker could restore it");
                }
            }
        }
        Ok(others)
    }
}

/// Batches that are bounded in number and in bytes.
fn batches(all: &[Conclusion]) -> impl Iterator<Item = &[Conclusion]> {
    let mut bytes = 0;
    let mut number = 0;
    all.chunk_by(move |said, _| {
        bytes += match &said.end {
            EffectEnd::Ended(result) | EffectEnd::Unknown(result) => result.len(),
            EffectEnd::Undone | EffectEnd::Open => 0,
        };
        number += 1;
        let goes_on = number < limits::BATCH_ENTRIES_MAX && bytes < limits::TURN_BYTES_MAX;
        if !goes_on {
            (bytes, number) = (0, 0);
        }
        goes_on
    })
}

/// Says a batch. One statement that Redis refuses costs itself alone: a heartbeat must not wait for it for ever.
async fn say(store: &Store, batch: &[Conclusion]) -> Result<Vec<Option<Concluded>>, StoreError> {
    match store.conclude(batch).await {
        Err(error) if error.is_script_error() => {}
        said => return Ok(said?.into_iter().map(Some).collect()),
    }
    let mut said = Vec::with_capacity(batch.len());
    for one in batch {
        match store.conclude(std::slice::from_ref(one)).await {
            Err(error) if error.is_script_error() => {
                tracing::error!(%error, call = one.by.call(), "Redis rejected the restored effect claim");
                said.push(None);
            }
            concluded => said.push(concluded?.pop()),
        }
    }
    Ok(said)
}
