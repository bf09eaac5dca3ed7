//! The numbers of a tenant: as its counters have them, and as the sum over its records.

use tickfleet_model::TenantId;

use crate::keys;
use crate::transaction::CounterKey;
use crate::turn::Turn;
use crate::view::{Query, Undecided, Value, View};

/// Numbers of a tenant's unfinished turns and tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantCounts {
    /// Number of unfinished turns and tasks.
    pub unfinished: u64,
    /// Size of the unfinished turns and tasks, bytes.
    pub bytes: u64,
    /// Number of slices that are on queues or with workers.
    pub out: u64,
}

impl TenantCounts {
    /// Adds a record of the tenant.
    pub fn add(&mut self, turn: &Turn) {
        self.unfinished += 1;
        self.bytes += turn.bytes;
        self.out += u64::from(turn.counts_as_out());
    }

    /// The numbers in the tenant's counters.
    ///
    /// # Errors
    /// [`Undecided`]: the counters have to be read first.
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
            out: used(keys::limits::OUT)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{READY, THROTTLED, name, turn};
    use super::*;
    use crate::paper::Paper;
    use crate::transaction::{Transaction, Write};

    #[test]
    fn numbers_of_a_tenant_are_compared() {
        let (mut shard, tenant) = (Paper::at(1_000), name().tenant);
        let mut counts = TenantCounts::default();
        [turn(READY), turn(THROTTLED)].iter().for_each(|turn| counts.add(turn));
        assert_eq!(counts, TenantCounts { unfinished: 2, bytes: 20, out: 1 });
        let mut transaction = Transaction::new(shard.context().version);
        let amounts = [(keys::limits::UNFINISHED, 2), (keys::limits::BYTES, 20), (keys::limits::OUT, 1)];
        for (limit, amount) in amounts {
            let counter = CounterKey::new(limit, tenant.as_str());
            transaction.write(Write::Add { counter, amount, ends_ms: None });
        }
        shard.commit(&transaction).unwrap();
        let mut view = View::default();
        let stored = loop {
            match TenantCounts::stored(&tenant, &view) {
                Ok(stored) => break stored,
                Err(Undecided::Missing(query)) => {
                    let Query::Counter(counter) = &query else { panic!("{query:?}") };
                    let state = shard.counters.get(counter).copied();
                    view.insert(query, Value::Counter(state));
                }
                Err(other) => panic!("{other:?}"),
            }
        };
        assert_eq!(stored, counts);
    }
}
