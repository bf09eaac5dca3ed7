//! Consumers: schedulers and workers that hold entries of queues, their leases, and the notices for them.
//!
//! | Key | Holds |
//! |---|---|
//! | record `consumer:<consumer>` | lease, slots, policy, see [`Consumer`]; for a day after the lease |
//! | set `consumers` | consumers that may hold something; a place is the end of the lease, ms |
//! | set `silent` | consumers that fell silent and hold nothing; a place is the end of the lease, ms; for a day |
//! | set `canceled:<consumer>` | canceled turns that the consumer holds; a place is when they were canceled, ms |
//! | record `reaping` | time of the last check for dead consumers, see [`Reaping`] |
//!
//! A consumer sends its first heartbeat before it takes anything. So a consumer without a record has left, and its entries
//! are free. [`dead`] lists dead consumers. [`Bury`] removes one only after a reaper has taken back all its entries.
//! [`ListHolder`] lists consumers that took something after that.

mod beat;
mod bury;
mod list;
mod reaping;

pub use beat::{Beat, BeatReport, LeaseBefore, Leave, Role, Slots};
pub use bury::{Burial, Bury};
pub use list::ListHolder;
pub use reaping::{MayReap, ReapPermit, Reaping};

use serde::{Deserialize, Serialize};
use tickfleet_model::ConsumerId;

use crate::keys::{self, TurnName};
use crate::record::{Record, Stored};
use crate::transaction::{Guard, RecordKey, SetKey, Transaction, Version, Write};
use crate::view::{Query, Undecided, View};

/// Retention of a consumer whose lease has ended, ms. During this time it counts as silent, not as gone.
pub(crate) const SILENT_MS: i64 = 24 * 3_600_000;
/// Maximum number of notices per decision.
const NOTICES_MAX: usize = 256;

/// A consumer as of its last heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    /// End of its lease, ms.
    #[serde(rename = "to")]
    pub lease_ends_ms: i64,
    /// The length of its leases, ms.
    #[serde(rename = "le")]
    pub lease_ms: i64,
    /// When it reported this, ms.
    #[serde(rename = "t")]
    pub beaten_ms: i64,
    /// Its role.
    #[serde(rename = "r")]
    pub role: Role,
    /// Prefix of the digest of its policy.
    #[serde(rename = "po")]
    pub policy: String,
    /// True if it takes no new work.
    #[serde(rename = "dr", default)]
    pub drained: bool,
}

impl Record for Consumer {
    const SCHEMA: u32 = 1;
}

/// The record of a consumer.
#[must_use]
pub fn key(consumer: &str) -> RecordKey {
    RecordKey::new(format!("consumer:{consumer}"))
}

/// Consumers that may hold something; a place is the end of the lease, ms.
#[must_use]
pub fn consumers() -> SetKey {
    SetKey::new("consumers")
}

/// Consumers that fell silent and were buried, for people; a place is the end of the lease, ms.
#[must_use]
pub fn silent() -> SetKey {
    SetKey::new("silent")
}

/// Removes a consumer from [`silent`].
fn leave_silent(consumer: &str, transaction: &mut Transaction) {
    transaction.write(Write::Leave { set: silent(), member: consumer.into(), queue_of: None });
}

/// The query for consumers whose lease has ended.
#[must_use]
pub fn dead(now_ms: i64, count: usize) -> Query {
    Query::First { set: consumers(), upto: Some(now_ms.max(0).unsigned_abs()), count }
}

/// Canceled turns that a consumer holds; a place is when they were canceled, ms.
#[must_use]
pub fn cancels(consumer: &str) -> SetKey {
    keys::canceled(consumer)
}

/// Notifies the consumer that holds a slice of `name` that the turn is canceled. The caller guards the version of the turn's
/// record from when the consumer held the slice, so that a buried consumer gets no notice.
pub fn notify_cancel(name: &TurnName, holder: &str, now_ms: i64, transaction: &mut Transaction) {
    let place = now_ms.max(0).unsigned_abs();
    transaction.write(Write::Join { set: cancels(holder), member: name.to_string().into(), place, queue_of: None });
}

/// The liveness of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// Its lease is running.
    Alive {
        /// End of the lease, ms.
        lease_ends_ms: i64,
    },
    /// Its lease has ended without a shutdown.
    Silent {
        /// End of the lease, ms.
        lease_ends_ms: i64,
        /// The version of the record that was read.
        version: Version,
    },
    /// It has shut down, or was silent for more than a day.
    Gone,
}

impl Liveness {
    /// Reads the liveness of a consumer at `now_ms`.
    ///
    /// # Errors
    /// [`Undecided`] if its record has to be read first.
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

    /// True if a lease is running.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Alive { .. })
    }

    /// Guards that the consumer is as dead as it was read: a heartbeat makes the transaction conflict. A caller that takes
    /// back the consumer's entries must also guard the restart epoch, because heartbeats may have been lost.
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
