//! Consumers are the schedulers and workers that hold entries of queues. A consumer sends its first heartbeat before it
//! takes entries. So a consumer without a record has left, and its entries can be redelivered.

mod heartbeat;
mod list;
mod reaping;
mod remove_dead_consumer;

pub use heartbeat::{EndLease, Heartbeat, HeartbeatReport, LeaseBefore, Role, Slots};
pub use list::ListHolder;
pub use reaping::{ReapPermit, ReapState, RequestReapPermit};
pub use remove_dead_consumer::{RemoveDeadConsumer, RemoveDeadConsumerResult};

use serde::{Deserialize, Serialize};
use tickfleet_model::ConsumerId;

use crate::keys::{self, TurnName};
use crate::record::{Record, Stored};
use crate::transaction::{Guard, RecordKey, SetKey, Transaction, Version};
use crate::view::{Query, Undecided, View};

/// A consumer's record stays for this time (ms) after the end of the lease. Until then, the consumer counts as
/// [`Liveness::Silent`].
pub(crate) const SILENT_MS: i64 = 24 * 3_600_000;
const NOTICES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    #[serde(rename = "to")]
    pub lease_ends_ms: i64,
    #[serde(rename = "le")]
    pub lease_ms: i64,
    #[serde(rename = "t")]
    pub heartbeat_ms: i64,
    #[serde(rename = "r")]
    pub role: Role,
    /// The start of the digest of the consumer's policy.
    #[serde(rename = "po")]
    pub policy: String,
    #[serde(rename = "dr", default)]
    pub drained: bool,
}

impl Record for Consumer {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key(consumer: &str) -> RecordKey {
    RecordKey::new(format!("consumer:{consumer}"))
}

/// Consumers that may hold entries. The score is the end of the lease (ms).
#[must_use]
pub fn consumers() -> SetKey {
    SetKey::new("consumers")
}

/// Removed consumers, for operators. The score is the end of the lease (ms).
#[must_use]
pub fn silent() -> SetKey {
    SetKey::new("silent")
}

fn leave_silent_set(consumer: &str, transaction: &mut Transaction) {
    transaction.leave(silent(), consumer);
}

#[must_use]
pub fn dead(now_ms: i64, count: usize) -> Query {
    Query::First { set: consumers(), upto: Some(now_ms.max(0).unsigned_abs()), count }
}

/// The caller must guard the version of the turn's record. Otherwise a removed consumer could get a notice.
pub fn notify_cancel(name: &TurnName, holder: &str, now_ms: i64, transaction: &mut Transaction) {
    transaction.join(keys::canceled(holder), name.to_string(), now_ms);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    Alive {
        lease_ends_ms: i64,
    },
    Silent {
        lease_ends_ms: i64,
        version: Version,
    },
    /// The consumer has shut down, or was silent for more than a day.
    Gone,
}

impl Liveness {
    pub fn of(consumer: &ConsumerId, view: &View, now_ms: i64) -> Result<Self, Undecided> {
        let stored: Option<Stored<Consumer>> = view.record(&key(consumer.as_str()))?;
        Ok(match stored {
            None => Self::Gone,
            Some(Stored { value: Consumer { lease_ends_ms, .. }, .. }) if lease_ends_ms > now_ms => {
                Self::Alive { lease_ends_ms }
            }
            Some(Stored { value, version, .. }) => Self::Silent { lease_ends_ms: value.lease_ends_ms, version },
        })
    }

    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Alive { .. })
    }

    /// Fails if the consumer has sent a heartbeat since the read. A restart may have lost heartbeats, so a caller that
    /// redelivers entries must also guard the restart epoch.
    pub fn guard_dead(&self, consumer: &ConsumerId, transaction: &mut Transaction) {
        match self {
            Self::Alive { lease_ends_ms } => transaction.guard(Guard::Since(*lease_ends_ms)),
            Self::Silent { version, lease_ends_ms } => transaction
                .guard(Guard::Version(key(consumer.as_str()), version.clone()))
                .guard(Guard::Since(*lease_ends_ms)),
            Self::Gone => transaction.guard(Guard::Absent(key(consumer.as_str()))),
        };
    }
}
