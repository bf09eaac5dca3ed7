//! Leases of exclusive roles of a process, such as the sealer or an exporter.
//!
//! A lease is a field of the record that the holder writes. The record's version is the fence: after a takeover, the
//! previous holder cannot write. So a lease only avoids duplicate work, and it may end early.

use serde::{Deserialize, Serialize};
use tickfleet_model::ConsumerId;

use crate::transaction::{Guard, Transaction};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    #[serde(rename = "by")]
    pub holder: ConsumerId,
    #[serde(rename = "to")]
    pub ends_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub process: ConsumerId,
    /// How long the process keeps the role after its last write.
    pub lease_ms: i64,
}

impl Candidate {
    /// At a takeover, guards that the other lease has ended.
    pub fn take(&self, present: Option<&Lease>, now_ms: i64, transaction: &mut Transaction) -> Option<Lease> {
        if let Some(other) = present.filter(|lease| lease.holder != self.process) {
            if other.ends_ms > now_ms {
                return None;
            }
            transaction.guard(Guard::Since(other.ends_ms));
        }
        Some(Lease { holder: self.process.clone(), ends_ms: now_ms + self.lease_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Version;

    fn candidate(name: &str) -> Candidate {
        Candidate { process: ConsumerId::new(name).unwrap(), lease_ms: 100 }
    }

    #[test]
    fn one_process_holds_a_lease_until_it_expires() {
        let mut transaction = Transaction::new(Version::new("v"));
        let first = candidate("a").take(None, 0, &mut transaction).unwrap();
        assert_eq!(first.ends_ms, 100);
        assert_eq!(candidate("b").take(Some(&first), 99, &mut transaction), None);
        assert_eq!(candidate("a").take(Some(&first), 50, &mut transaction).unwrap().ends_ms, 150);
        assert!(transaction.guards.is_empty());
        assert!(candidate("b").take(Some(&first), 100, &mut transaction).is_some());
        assert_eq!(transaction.guards, [Guard::Since(100)], "a takeover holds only if the lease has really ended");
    }
}
