//! The loop breaker: if an agent repeats a call with the same result again and again, the call is refused for a while.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tickfleet_model::{AgentId, TaskId, TenantId};

use super::{CallName, is_contended};
use crate::decision::Context;
use crate::mutant;
use crate::record::Record;
use crate::section::Section;
use crate::transaction::{RecordKey, Transaction};
use crate::view::{Undecided, View};

/// For each streak.
const REFUSED_MAX: usize = 32;

/// Covers the calls of an agent, or of one of its tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreakName {
    pub tenant: TenantId,
    pub agent: AgentId,
    pub task: Option<TaskId>,
}

impl StreakName {
    #[must_use]
    pub fn key(&self) -> RecordKey {
        let Self { tenant, agent, .. } = self;
        RecordKey::new(match &self.task {
            Some(task) => format!("streak:{tenant}:{agent}:{task}"),
            None => format!("streak:{tenant}:{agent}"),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreakBounds {
    pub deny_after: u64,
    pub deny_ms: i64,
    /// After this time without new calls, a streak is dropped.
    pub keep_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Streak {
    /// Absent after a refusal.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastCall>,
    /// End of each refusal (ms), by the hash of the call.
    #[serde(rename = "r", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCall {
    /// Hash of tool and arguments.
    #[serde(rename = "h")]
    pub hash: String,
    #[serde(rename = "re")]
    pub result: String,
    #[serde(rename = "by")]
    pub by: CallName,
    #[serde(rename = "n")]
    pub count: u64,
}

impl Record for Streak {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeat {
    pub hash: String,
    pub result: String,
    pub by: CallName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreakCount {
    /// Includes this call.
    pub count: u64,
    pub refused_until_ms: Option<i64>,
}

impl Streak {
    #[must_use]
    pub fn refused_until(&self, hash: &str, now_ms: i64) -> Option<i64> {
        self.refused.get(hash).copied().filter(|until_ms| *until_ms > now_ms)
    }

    /// A call that is reported again after a crash counts once.
    pub fn count(&mut self, call: &Repeat, bounds: &StreakBounds, now_ms: i64) -> StreakCount {
        let same = self.last.take().filter(|last| last.hash == call.hash && last.result == call.result);
        let count = match same {
            Some(last) if last.by == call.by => last.count,
            Some(last) => last.count + 1,
            None => 1,
        };
        if count < bounds.deny_after {
            let Repeat { hash, result, by } = call.clone();
            self.last = Some(LastCall { hash, result, by, count });
            return StreakCount { count, refused_until_ms: None };
        }
        let until_ms = now_ms + bounds.deny_ms;
        self.refused.retain(|_, until_ms| *until_ms > now_ms);
        while self.refused.len() >= REFUSED_MAX {
            let first = self.refused.iter().min_by_key(|(_, until_ms)| **until_ms).map(|(hash, _)| hash.clone());
            let Some(first) = first else { break };
            self.refused.remove(&first);
        }
        self.refused.insert(call.hash.clone(), until_ms);
        StreakCount { count, refused_until_ms: Some(until_ms) }
    }
}

/// Returns the end of a refusal. Needs no guard, because the result depends on a single record and nothing is written.
pub fn refusal(view: &View, name: &StreakName, hash: &str, now_ms: i64) -> Result<Option<i64>, Undecided> {
    Ok(view.record::<Streak>(&name.key())?.and_then(|stored| stored.value.refused_until(hash, now_ms)))
}

/// After repeated conflicts, the calls are not counted. That is harmless: a loop's calls come one after another, so
/// later calls are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountCalls {
    pub name: StreakName,
    pub bounds: StreakBounds,
    pub calls: Vec<Repeat>,
}

impl CountCalls {
    /// Assumes that no other call ends before the commit.
    pub fn preview(&self, view: &View, now_ms: i64) -> Result<Vec<StreakCount>, Undecided> {
        let mut streak = view.record::<Streak>(&self.name.key())?.map(|stored| stored.value).unwrap_or_default();
        Ok(self.calls.iter().map(|call| streak.count(call, &self.bounds, now_ms)).collect())
    }
}

impl Section for CountCalls {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let key = self.name.key();
        if is_contended(&key, context) {
            return Ok(());
        }
        let stored = view.record::<Streak>(&key)?;
        if !mutant!("streak_guards_its_record") {
            transaction.guard_read(&key, stored.as_ref());
        }
        let mut streak = stored.map(|stored| stored.value).unwrap_or_default();
        for call in &self.calls {
            streak.count(call, &self.bounds, context.now_ms);
        }
        transaction.put_for(&key, &streak, self.bounds.keep_ms.max(self.bounds.deny_ms));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::transaction::Conflict;

    use super::super::testing::{MiniStore, agent, call, detects, tenant};
    use super::*;

    const BOUNDS: StreakBounds = StreakBounds { deny_after: 3, deny_ms: 100, keep_ms: 50 };

    fn repeat(hash: &str, result: &str, at: usize) -> Repeat {
        Repeat { hash: hash.into(), result: result.into(), by: call("t", at) }
    }

    #[test]
    fn three_equal_calls_trigger_a_temporary_rejection() {
        let mut streak = Streak::default();
        let count = |streak: &mut Streak, at| streak.count(&repeat("h", "r", at), &BOUNDS, 10);
        assert_eq!(count(&mut streak, 0).count, 1);
        assert_eq!(count(&mut streak, 0).count, 1, "the same call after a crash");
        assert_eq!(count(&mut streak, 1).count, 2);
        assert_eq!(count(&mut streak, 2), StreakCount { count: 3, refused_until_ms: Some(110) });
        assert_eq!(streak.refused_until("h", 109), Some(110));
        assert_eq!(streak.refused_until("h", 110), None);
        assert_eq!(count(&mut streak, 3).count, 1, "the refusal ends the streak");
    }

    #[test]
    fn a_different_call_or_result_starts_a_new_streak() {
        let mut streak = Streak::default();
        streak.count(&repeat("h", "r", 0), &BOUNDS, 0);
        assert_eq!(streak.count(&repeat("h", "s", 1), &BOUNDS, 0).count, 1);
        assert_eq!(streak.count(&repeat("i", "s", 2), &BOUNDS, 0).count, 1);
        assert_eq!(streak.count(&repeat("i", "s", 3), &BOUNDS, 0).count, 2);
    }

    #[test]
    fn a_contended_streak_count_does_not_block_a_settle() {
        let name = StreakName { tenant: tenant(), agent: agent(), task: None };
        let section = CountCalls { name: name.clone(), bounds: BOUNDS, calls: vec![repeat("h", "r", 0)] };
        let mut context = MiniStore::default().context();
        context.conflicts = vec![Conflict::Record { key: name.key(), stored: None }; 3];
        let mut transaction = Transaction::new(context.version.clone());
        assert_eq!(section.add_to(&mut transaction, &View::default(), &context), Ok(()));
        assert_eq!(transaction, Transaction::new(context.version));
    }

    #[test]
    fn concurrent_calls_are_all_counted() {
        let name = StreakName { tenant: tenant(), agent: agent(), task: None };
        let count = |at| CountCalls { name: name.clone(), bounds: BOUNDS, calls: vec![repeat("h", "r", at)] };
        let one = count(0);
        let other = count(1);
        detects("streak_guards_its_record", || {
            MiniStore::default().refuses_stale(
                |transaction, view, context| one.add_to(transaction, view, context),
                |store| store.section(|transaction, view, context| other.add_to(transaction, view, context)).unwrap(),
            )
        });
        let mut store = MiniStore::default();
        for section in [&one, &other] {
            store.section(|transaction, view, context| section.add_to(transaction, view, context)).unwrap();
        }
        assert_eq!(store.record::<Streak>(&name.key()).unwrap().last.unwrap().count, 2);
        let view = store.view_for(|view, _| one.preview(view, 0));
        assert_eq!(one.preview(&view, 0), Ok(vec![StreakCount { count: 3, refused_until_ms: Some(100) }]));
    }

    proptest! {
        #[test]
        fn a_call_is_rejected_exactly_at_the_streak_limit(calls in prop::collection::vec((0..3_u8, 0..2_u8), 1..60)) {
            let mut streak = Streak::default();
            let mut row = 0;
            let mut last = None;
            for (at, call) in calls.into_iter().enumerate() {
                row = if last == Some(call) { row + 1 } else { 1 };
                last = Some(call);
                let counted = streak.count(&repeat(&call.0.to_string(), &call.1.to_string(), at), &BOUNDS, 0);
                prop_assert_eq!(counted.count, row);
                prop_assert_eq!(counted.refused_until_ms.is_some(), row == BOUNDS.deny_after);
                if row == BOUNDS.deny_after {
                    last = None;
                }
            }
        }

        #[test]
        fn refusals_are_bounded(calls in 1..200_usize) {
            let mut streak = Streak::default();
            let bounds = StreakBounds { deny_after: 1, ..BOUNDS };
            for at in 0..calls {
                streak.count(&repeat(&at.to_string(), "r", at), &bounds, 0);
                prop_assert!(streak.refused.len() <= REFUSED_MAX);
                prop_assert!(streak.refused.contains_key(&at.to_string()));
            }
        }
    }
}
