//! Counts of each day's calls, computed from the audit log on demand.
//!
//! A count starts after the last counted entry, so each entry counts once. The transaction of a count also updates the
//! tenants' numbers of counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tickfleet_model::limits;

use crate::counters::expire_counters;
use crate::decision::{Context, Decision, Step};
use crate::record::Record;
use crate::transaction::{CounterKey, EntryId, RecordKey, Write};
use crate::view::{Query, Undecided, Value, View};

const DAY_MS: i64 = 24 * 3_600_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    #[serde(rename = "to", default, skip_serializing_if = "Option::is_none")]
    pub upto: Option<EntryId>,
}

impl Record for Statistics {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key() -> RecordKey {
    RecordKey::new("statistics")
}

/// `day` is in days since 1970.
#[must_use]
pub fn day_counts(day: i64) -> Arc<str> {
    format!("_calls:{day}").into()
}

/// Holds the number of counts of each tenant, because each tenant has its own bound.
fn numbers_of_counts(day: i64) -> Arc<str> {
    format!("_counts:{day}").into()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// In days since 1970.
    pub day: i64,
    pub tenant: String,
    pub count: String,
    /// Receives the amount if the tenant has too many counts on this day.
    pub overflow: String,
    pub amount: u64,
}

#[derive(Debug, Clone)]
pub struct CountCalls {
    pub before: Option<EntryId>,
    pub upto: EntryId,
    pub additions: Vec<Addition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountResult {
    Done,
    /// The last counted entry is not `before`, so nothing was added.
    Stale {
        upto: Option<EntryId>,
    },
}

impl Addition {
    fn counter(&self) -> CounterKey {
        CounterKey::new(day_counts(self.day), &self.count)
    }

    fn number(&self) -> CounterKey {
        CounterKey::new(numbers_of_counts(self.day), &self.tenant)
    }
}

impl Decision for CountCalls {
    type Output = CountResult;

    fn reads(&self) -> Vec<Query> {
        let of_one = |addition: &Addition| [addition.counter(), addition.number()].map(Query::Counter);
        self.additions.iter().flat_map(of_one).chain([Query::Record(key())]).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<CountResult>, Undecided> {
        let (mut transaction, stored) = context.update::<Statistics>(view, &key())?;
        let mut statistics = stored.unwrap_or_default();
        if statistics.upto != self.before {
            return Ok(Step::Return(CountResult::Stale { upto: statistics.upto }));
        }
        let mut numbers = BTreeMap::<CounterKey, u64>::new();
        for addition in &self.additions {
            let mut counter = addition.counter();
            let is_new = matches!(view.get(&Query::Counter(counter.clone()))?, Value::Counter(None));
            if is_new {
                let number = addition.number();
                let before = match view.get(&Query::Counter(number.clone()))? {
                    Value::Counter(Some(state)) => state.used,
                    _ => 0,
                };
                let added = numbers.entry(number).or_default();
                if before + *added >= limits::STATS_FIELDS_MAX {
                    counter = CounterKey::new(&counter.limit, &addition.overflow);
                } else {
                    *added += 1;
                }
            }
            let amount = i64::try_from(addition.amount).unwrap_or(i64::MAX);
            transaction.write(Write::Add { counter, amount, ends_ms: None });
        }
        for (counter, added) in numbers {
            let amount = i64::try_from(added).unwrap_or(i64::MAX);
            transaction.write(Write::Add { counter, amount, ends_ms: None });
        }
        for day in self.additions.iter().map(|addition| addition.day) {
            for limit in [day_counts(day), numbers_of_counts(day)] {
                expire_counters(&limit, day * DAY_MS + limits::STATS_KEPT_MS, &mut transaction);
            }
        }
        statistics.upto = Some(self.upto.clone());
        transaction.put(&key(), &statistics);
        transaction.dedupe_record = Some(key());
        Ok(Step::Commit(transaction, CountResult::Done))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Transaction;
    use crate::trial::Trial;

    fn count(before: Option<u64>, upto: u64, counts: &[&str]) -> CountCalls {
        let entry = |number: u64| EntryId::new(format!("{number}-0"));
        let addition = |count: &&str| Addition {
            day: 20_000,
            tenant: count.split(':').next().unwrap().into(),
            count: (*count).into(),
            overflow: "t:~:~:ok".into(),
            amount: 1,
        };
        CountCalls { before: before.map(entry), upto: entry(upto), additions: counts.iter().map(addition).collect() }
    }

    fn used(shard: &Trial, counter: &str) -> u64 {
        shard.counters.get(&CounterKey::new(day_counts(20_000), counter)).map_or(0, |state| state.used)
    }

    #[test]
    fn counting_resumes_after_the_last_counted_entry() {
        let mut shard = Trial::at(20_000 * DAY_MS);
        assert_eq!(shard.run(&count(None, 3, &["t:a:x:ok", "t:a:y:ok"])), CountResult::Done);
        let stale = CountResult::Stale { upto: Some(EntryId::new("3-0")) };
        assert_eq!(shard.run(&count(None, 4, &["t:a:x:ok"])), stale);
        assert_eq!(shard.run(&count(Some(3), 4, &["t:a:x:ok"])), CountResult::Done);
        assert_eq!((used(&shard, "t:a:x:ok"), used(&shard, "t:a:y:ok")), (2, 1));
    }

    #[test]
    fn counts_over_the_daily_maximum_go_to_the_tenant_overflow() {
        let mut shard = Trial::at(20_000 * DAY_MS);
        shard.receipt(&count(None, 1, &["t:a:x:ok"]));
        let amount = i64::try_from(limits::STATS_FIELDS_MAX).unwrap();
        let counter = CounterKey::new(numbers_of_counts(20_000), "t");
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.write(Write::Add { counter, amount, ends_ms: None })).unwrap();
        shard.receipt(&count(Some(1), 2, &["t:a:x:ok", "t:a:new:ok", "u:a:new:ok"]));
        assert_eq!(used(&shard, "u:a:new:ok"), 1, "another tenant has room");
        assert_eq!((used(&shard, "t:a:x:ok"), used(&shard, "t:a:new:ok"), used(&shard, "t:~:~:ok")), (2, 0, 1));
    }

    proptest! {
        #[test]
        fn each_entry_counts_once(steps in prop::collection::vec((1..4u64, any::<bool>()), 1..20)) {
            let mut shard = Trial::at(20_000 * DAY_MS);
            let mut decided = None;
            for (entries, keep) in steps {
                let before = shard.record::<Statistics>(&key()).and_then(|one| one.upto);
                let before = before.and_then(|entry| entry.as_str().strip_suffix("-0")?.parse().ok());
                let mut step = count(before, before.unwrap_or(0) + entries, &["c"]);
                step.additions[0].amount = entries;
                if keep {
                    decided = Some((shard.step(&step), step));
                    continue;
                }
                shard.receipt(&step);
                if let Some((old, step)) = decided.take() {
                    shard.finish(&step, old);
                }
            }
            let upto = shard.record::<Statistics>(&key()).and_then(|one| one.upto);
            let counted = upto.map_or(0, |entry| entry.as_str().trim_end_matches("-0").parse().unwrap());
            prop_assert_eq!(used(&shard, "c"), counted);
        }
    }
}
