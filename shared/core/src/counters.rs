//! Deletion of outdated counters by the janitor.
//!
//! All counters of a limit in the set `expiring` are deleted together. Other counters are deleted one by one, a day
//! after their window has ended.

use std::sync::Arc;

use crate::decision::{Context, Decision, Step};
use crate::transaction::{ConditionalDebit, CounterKey, CounterState, Guard, SetKey, Transaction, Window, Write};
use crate::view::{Query, Undecided, Value, View};

/// How long a counter is kept after its window.
pub const IDLE_MS: i64 = 24 * 3_600_000;
const PRUNED_WITHIN_MS: i64 = 60_000;

/// A window of [`Window::Rolling`] has an end but no start.
#[must_use]
pub const fn is_rolling(state: &CounterState) -> bool {
    state.began_ms == 0 && state.ends_ms > 0
}

/// The score is the time of deletion (ms).
#[must_use]
pub fn expiring() -> SetKey {
    SetKey::new("expiring")
}

pub fn expire_counters(limit: &Arc<str>, at_ms: i64, transaction: &mut Transaction) {
    let score = at_ms.max(0).unsigned_abs();
    let add = Write::AddMember { set: expiring(), member: limit.clone(), score, queue_of: None };
    if !transaction.writes.contains(&add) {
        transaction.write(add);
    }
}

#[derive(Debug, Clone)]
pub struct DeleteCounters {
    pub limit: Arc<str>,
    pub counters: Vec<Arc<str>>,
    /// True if these are the last counters. The limit then leaves the set.
    pub last: bool,
}

impl Decision for DeleteCounters {
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Score(expiring(), self.limit.clone())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        let score = view.score(&expiring(), &self.limit)?;
        let Some(at_ms) = score.and_then(|score| i64::try_from(score).ok()) else { return Ok(Step::Return(false)) };
        if at_ms > context.now_ms {
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Since(at_ms));
        for counter in &self.counters {
            transaction.write(Write::DeleteCounter(CounterKey { limit: self.limit.clone(), counter: counter.clone() }));
        }
        if self.last {
            transaction.leave(expiring(), self.limit.clone());
        }
        Ok(Step::Commit(transaction, true))
    }
}

/// Keeps a counter without a window, and a counter for which turns wait.
#[derive(Debug, Clone)]
pub struct PruneCounter {
    pub counter: CounterKey,
}

impl PruneCounter {
    #[must_use]
    pub fn is_idle(state: &CounterState, now_ms: i64) -> bool {
        state.ends_ms > 0 && state.ends_ms + IDLE_MS <= now_ms && !state.queued
    }
}

impl Decision for PruneCounter {
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Counter(self.counter.clone())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        let now_ms = context.now_ms;
        let window = match view.get(&Query::Counter(self.counter.clone()))? {
            Value::Counter(Some(state)) if !Self::is_idle(state, now_ms) => return Ok(Step::Return(false)),
            Value::Counter(Some(state)) if is_rolling(state) => Window::Rolling { length_ms: 1 },
            Value::Counter(Some(_)) => {
                Window::Day { start_ms: now_ms - PRUNED_WITHIN_MS, end_ms: now_ms + PRUNED_WITHIN_MS }
            }
            _ => return Ok(Step::Return(false)),
        };
        let mut transaction = Transaction::new(context.version.clone());
        // The guard fails if a debit after the read opened a new window, or if a rolling counter has an amount left.
        let debit = ConditionalDebit::total(self.counter.clone(), 0, 0);
        transaction.guard(Guard::Debit(ConditionalDebit { window, behind_queue: true, ..debit }));
        transaction.write(Write::DeleteCounter(self.counter.clone()));
        Ok(Step::Commit(transaction, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;

    #[test]
    fn counters_are_deleted_when_their_limit_expires() {
        let mut shard = Trial::at(1_500);
        let limit: Arc<str> = "_requests:acme:0".into();
        let other: Arc<str> = "_cost:acme:0".into();
        let mut transaction = Transaction::new(shard.context().version);
        for limit in [&limit, &limit, &other] {
            expire_counters(limit, 2_000, &mut transaction);
            let counter = CounterKey::new(limit, "kelly");
            transaction.write(Write::Add { counter, amount: 1, ends_ms: None });
        }
        shard.commit(&transaction).unwrap();
        let delete = DeleteCounters { limit: limit.clone(), counters: vec!["kelly".into()], last: true };
        assert!(!shard.run(&delete));
        shard.now_ms = 2_000;
        let early = shard.step(&delete);
        shard.now_ms = 1_500;
        assert!(!shard.finish(&delete, early).result, "the caller's clock was ahead");
        shard.now_ms = 2_000;
        assert!(shard.run(&delete));
        assert!(!shard.run(&delete));
        assert_eq!(shard.counters.keys().collect::<Vec<_>>(), [&CounterKey::new(&other, "kelly")]);
        assert_eq!(shard.members(&expiring()), [&*other]);
    }

    #[test]
    fn idle_counters_are_pruned() {
        let mut shard = Trial::at(1_500);
        let counter = CounterKey::new("spend", "acme");
        let prune = PruneCounter { counter: counter.clone() };
        let put = |shard: &mut Trial, ends_ms, queued| {
            shard.counters.insert(counter.clone(), CounterState { used: 3, ends_ms, began_ms: 1, queued });
        };
        assert!(!shard.run(&prune), "there is none");
        put(&mut shard, 1_000, false);
        assert!(!shard.run(&prune));
        shard.pass(IDLE_MS);
        for (ends_ms, queued) in [(0, false), (shard.now_ms + 1, false), (1_000, true)] {
            put(&mut shard, ends_ms, queued);
            assert!(!shard.run(&prune));
        }
        put(&mut shard, 1_000, false);
        let decided = shard.step(&prune);
        let ends_ms = shard.now_ms + 10;
        put(&mut shard, ends_ms, false);
        assert!(!shard.finish(&prune, decided).result, "a debit came in between");
        put(&mut shard, 1_000, false);
        assert!(shard.run(&prune));
        assert!(shard.counters.is_empty());
    }
}
