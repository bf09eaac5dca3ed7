//! The lease of a consumer that seems to have crashed.

use tickfleet_model::ConsumerId;

use crate::decision::Context;
use crate::mutant;
use crate::transaction::{Guard, RecordKey, Transaction, Version};
use crate::workers::{self, Liveness};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub heartbeat: RecordKey,
    /// Each heartbeat changes the version. `None` without a record.
    pub version: Option<Version>,
    pub ends_ms: i64,
}

impl Lease {
    #[must_use]
    pub fn ended(consumer: &ConsumerId, liveness: &Liveness) -> Option<Self> {
        let heartbeat = workers::key(consumer.as_str());
        match liveness {
            Liveness::Alive { .. } => None,
            Liveness::Silent { lease_ends_ms, version } => {
                Some(Self { heartbeat, version: Some(version.clone()), ends_ms: *lease_ends_ms })
            }
            Liveness::Gone => Some(Self { heartbeat, version: None, ends_ms: 0 }),
        }
    }

    /// Guards that the lease has ended, that the consumer has not renewed it, and that the store has not restarted
    /// within one lease.
    pub fn guard(&self, transaction: &mut Transaction, context: &Context, lease_ms: i64) {
        if !mutant!("reap_guards_the_epoch") {
            transaction.guard(Guard::Epoch { number: context.epoch, lease_ms });
        }
        if !mutant!("reap_guards_the_heartbeat") {
            transaction.guard(match &self.version {
                Some(version) => Guard::Version(self.heartbeat.clone(), version.clone()),
                None => Guard::Absent(self.heartbeat.clone()),
            });
        }
        if !mutant!("reap_guards_the_end_of_the_lease") {
            transaction.guard(Guard::Since(self.ends_ms));
        }
    }
}
