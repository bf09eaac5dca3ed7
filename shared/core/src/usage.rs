//! Counts the usage of models, in counters of the limits `_requests:<tenant>:<day>`, `_tokens_in:…`, `_tokens_out:…`
//! and `_cost:…`. `<day>` is the start of the tenant's day in milliseconds. [`ConditionalDebit::OTHERS`] counts the
//! agents beyond the maximum number of counters.

use std::sync::Arc;

use tickfleet_model::{AgentId, TenantId, limits};

use crate::counters::expire_counters;
use crate::transaction::{ConditionalDebit, CounterKey, Guard, Transaction};
use crate::turn::TaskPart;

/// Every store represents all integers up to this maximum exactly.
const COUNTER_MAX: u64 = 1 << 53;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelUse {
    /// Unique within the task.
    pub request: String,
    pub tokens_in: u64,
    pub tokens_out: u64,
    /// In millionths.
    pub cost: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Day {
    pub start_ms: i64,
    pub end_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageUnit {
    Requests,
    TokensIn,
    TokensOut,
    /// In millionths.
    Cost,
}

impl UsageUnit {
    pub const ALL: [Self; 4] = [Self::Requests, Self::TokensIn, Self::TokensOut, Self::Cost];

    #[must_use]
    pub fn limit(self, tenant: &TenantId, day_start_ms: i64) -> Arc<str> {
        let unit = match self {
            Self::Requests => "requests",
            Self::TokensIn => "tokens_in",
            Self::TokensOut => "tokens_out",
            Self::Cost => "cost",
        };
        format!("_{unit}:{tenant}:{day_start_ms}").into()
    }

    const fn amount(self, used: &ModelUse) -> u64 {
        match self {
            Self::Requests => 1,
            Self::TokensIn => used.tokens_in,
            Self::TokensOut => used.tokens_out,
            Self::Cost => used.cost,
        }
    }
}

/// Returns false if the request was counted before. The caller must guard the record's version, and write the record in
/// the same transaction. [`Transaction::stamped`] must be false.
pub fn count_use(
    task: &mut TaskPart,
    used: &ModelUse,
    owner: (&TenantId, &AgentId),
    day: Day,
    now_ms: i64,
    transaction: &mut Transaction,
) -> bool {
    if task.counted.as_ref() == Some(&used.request) {
        return false;
    }
    task.counted = Some(used.request.clone());
    let (tokens_in, tokens_out, cost) = task.used;
    task.used = (
        tokens_in.saturating_add(used.tokens_in),
        tokens_out.saturating_add(used.tokens_out),
        cost.saturating_add(used.cost),
    );
    // If the day has ended in the meantime, the usage counts for the next day.
    let start_ms = if now_ms < day.end_ms { day.start_ms } else { day.end_ms };
    let ends_ms = start_ms + limits::USAGE_DAYS_MAX * 24 * 3_600_000;
    let (tenant, agent) = owner;
    for unit in UsageUnit::ALL {
        let limit = unit.limit(tenant, start_ms);
        expire_counters(&limit, ends_ms, transaction);
        let counter = CounterKey::new(limit, agent.as_str());
        let debit = Guard::Debit(ConditionalDebit {
            shadow: true,
            counters_max: limits::USAGE_AGENTS_MAX as u64,
            ..ConditionalDebit::total(counter, unit.amount(used).min(COUNTER_MAX / 2), COUNTER_MAX)
        });
        // The acknowledgment must stay the last guard.
        let held = transaction.guards.iter().position(|guard| matches!(guard, Guard::Held(..)));
        transaction.guards.insert(held.unwrap_or(transaction.guards.len()), debit);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::StreamKey;
    use crate::trial::Trial;
    use crate::{EntryId, Version};

    const DAY: Day = Day { start_ms: 1_000, end_ms: 2_000 };

    fn owner(agent: &str) -> (TenantId, AgentId) {
        (TenantId::new("acme").unwrap(), AgentId::new(agent).unwrap())
    }

    fn request(name: &str) -> ModelUse {
        ModelUse { request: name.into(), tokens_in: 100, tokens_out: 20, cost: 3 }
    }

    fn used(shard: &Trial, unit: UsageUnit, start_ms: i64, agent: &str) -> u64 {
        let limit = unit.limit(&owner("x").0, start_ms);
        shard.counters.get(&CounterKey::new(limit, agent)).map_or(0, |state| state.used)
    }

    fn count(shard: &mut Trial, task: &mut TaskPart, used: &ModelUse, agent: &str) -> bool {
        let (tenant, agent) = owner(agent);
        let mut transaction = Transaction::new(shard.context().version);
        let now_ms = shard.now_ms;
        let counted = count_use(task, used, (&tenant, &agent), DAY, now_ms, &mut transaction);
        shard.commit(&transaction).unwrap();
        counted
    }

    #[test]
    fn a_request_counts_once() {
        let mut shard = Trial::at(1_500);
        let mut task = TaskPart::default();
        assert!(count(&mut shard, &mut task, &request("1"), "kelly"));
        assert!(!count(&mut shard, &mut task, &request("1"), "kelly"), "it is counted");
        assert!(count(&mut shard, &mut task, &request("2"), "kelly"));
        assert_eq!(task.used, (200, 40, 6));
        assert_eq!(used(&shard, UsageUnit::Requests, 1_000, "kelly"), 2);
        assert_eq!(used(&shard, UsageUnit::TokensIn, 1_000, "kelly"), 200);
        assert_eq!(used(&shard, UsageUnit::Cost, 1_000, "kelly"), 6);
    }

    #[test]
    fn a_request_that_outlasts_its_day_counts_for_the_next() {
        let mut shard = Trial::at(2_000);
        let mut task = TaskPart::default();
        count(&mut shard, &mut task, &request("1"), "kelly");
        assert_eq!(used(&shard, UsageUnit::TokensOut, 2_000, "kelly"), 20);
        assert_eq!(used(&shard, UsageUnit::TokensOut, 1_000, "kelly"), 0);
    }

    #[test]
    fn agents_beyond_the_bound_are_counted_together() {
        let mut shard = Trial::at(1_500);
        for agent in 0..limits::USAGE_AGENTS_MAX + 2 {
            count(&mut shard, &mut TaskPart::default(), &request("1"), &format!("a{agent}"));
        }
        assert_eq!(used(&shard, UsageUnit::Requests, 1_000, ConditionalDebit::OTHERS), 2);
    }

    #[test]
    fn an_acknowledgement_stays_the_last_guard() {
        let mut transaction = Transaction::new(Version::new("v"));
        let held = Guard::Held(StreamKey::new("ready:normal"), EntryId::new("1-0"));
        transaction.guard(held.clone());
        let (tenant, agent) = owner("kelly");
        count_use(&mut TaskPart::default(), &request("1"), (&tenant, &agent), DAY, 1_500, &mut transaction);
        assert_eq!(transaction.guards.len(), 5);
        assert_eq!(transaction.guards.last(), Some(&held));
    }
}
