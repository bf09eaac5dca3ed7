//! How durable the begin of a call must be before the call runs.

use serde::{Deserialize, Serialize};

/// Each variant requires more than the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The record is in the memory of the primary. If the primary fails, the record may be lost.
    #[default]
    None,
    /// The record is also on the disk of the primary, in its fsynced append-only file.
    #[serde(rename = "local")]
    Disk,
    /// The record is also in the memory of a replica.
    Replica,
}

impl Durability {
    pub const WORDS: [(&str, Self); 3] = [("none", Self::None), ("local", Self::Disk), ("replica", Self::Replica)];

    /// The name in configuration, messages and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Disk => "local",
            Self::Replica => "replica",
        }
    }
}
