//! Compares a tenant's counters with the sums over its records.

use tickfleet_model::TenantId;

use crate::decision::{Context, Decision, Step};
use crate::keys;
use crate::transaction::{ConditionalDebit, CounterKey, Guard, Transaction, Write};
use crate::turn::Turn;
use crate::view::{Query, Undecided, Value, View};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantCounts {
    pub unfinished: u64,
    pub bytes: u64,
    /// In queues or with workers, without tasks of external runtimes.
    pub in_flight: u64,
}

impl TenantCounts {
    pub fn add(&mut self, turn: &Turn) {
        self.unfinished += 1;
        self.bytes += turn.bytes;
        self.in_flight += u64::from(turn.is_in_flight());
    }

    pub fn stored(tenant: &TenantId, view: &View) -> Result<Self, Undecided> {
        let used = |limit: &str| -> Result<u64, Undecided> {
            match view.get(&Query::Counter(CounterKey::new(limit, tenant.as_str())))? {
                Value::Counter(Some(state)) => Ok(state.used),
                _ => Ok(0),
            }
        };
        Ok(Self {
            unfinished: used(keys::limits::UNFINISHED)?,
            bytes: used(keys::limits::BYTES)?,
            in_flight: used(keys::limits::IN_FLIGHT)?,
        })
    }
}

/// The tenant's records must not change during the measurement. Turns can continue after it, because a transition
/// changes counters and sums by the same amounts.
#[derive(Debug, Clone)]
pub struct Recount {
    pub tenant: TenantId,
    pub counted: TenantCounts,
    pub stored: TenantCounts,
}

impl Decision for Recount {
    /// False if the caller must measure again.
    type Output = bool;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        if TenantCounts::stored(&self.tenant, view)? != self.stored {
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        let numbers = |counts: &TenantCounts| {
            [
                (keys::limits::UNFINISHED, counts.unfinished),
                (keys::limits::BYTES, counts.bytes),
                (keys::limits::IN_FLIGHT, counts.in_flight),
            ]
        };
        for ((limit, counted), (_, stored)) in numbers(&self.counted).into_iter().zip(numbers(&self.stored)) {
            let counter = CounterKey::new(limit, self.tenant.as_str());
            // The guard fails if the counter has grown since the read, for example because of another correction.
            transaction.guard(Guard::Debit(ConditionalDebit::total(counter.clone(), 0, stored)));
            let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let amount = signed(counted) - signed(stored);
            if amount != 0 {
                transaction.write(Write::Add { counter, amount, ends_ms: None });
            }
        }
        Ok(Step::Commit(transaction, true))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{READY, THROTTLED, name, turn};
    use super::*;
    use crate::transaction::{Transaction, Write};
    use crate::trial::Trial;

    #[test]
    fn a_recount_corrects_tenant_counters_once() {
        let mut shard = Trial::at(1_000);
        let tenant = name().tenant;
        let mut counts = TenantCounts::default();
        [turn(READY), turn(THROTTLED)].iter().for_each(|turn| counts.add(turn));
        assert_eq!(counts, TenantCounts { unfinished: 2, bytes: 20, in_flight: 1 });
        let mut transaction = Transaction::new(shard.context().version);
        let amounts = [(keys::limits::UNFINISHED, 2), (keys::limits::BYTES, 20), (keys::limits::IN_FLIGHT, 1)];
        for (limit, amount) in amounts {
            let counter = CounterKey::new(limit, tenant.as_str());
            transaction.write(Write::Add { counter, amount, ends_ms: None });
        }
        shard.commit(&transaction).unwrap();
        assert_eq!(stored(&shard, &tenant), counts);
        let counted = TenantCounts { unfinished: 3, bytes: 5, in_flight: 1 };
        let recount = Recount { tenant: tenant.clone(), counted, stored: counts };
        assert!(shard.run(&recount));
        assert_eq!(stored(&shard, &tenant), counted);
        assert!(!shard.run(&recount), "somebody has corrected them");
    }

    fn stored(shard: &Trial, tenant: &TenantId) -> TenantCounts {
        let mut view = View::default();
        loop {
            match TenantCounts::stored(tenant, &view) {
                Ok(stored) => return stored,
                Err(Undecided::Missing(queries)) => {
                    for query in queries {
                        let Query::Counter(counter) = &query else { panic!("{query:?}") };
                        let state = shard.counters.get(counter).copied();
                        view.insert(query, Value::Counter(state));
                    }
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}
