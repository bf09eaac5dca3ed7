//! How much has to be certain before a call of a `once` tool runs.

use serde::{Deserialize, Serialize};

/// What has to know that a call has begun before it runs. A later one in the list is the stricter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The memory of the primary. What it loses, nobody knows.
    #[default]
    None,
    /// The disk of the primary, too: its append-only file was fsynced.
    #[serde(rename = "local")]
    Disk,
    /// The memory of a replica, too.
    Replica,
}

impl Durability {
    /// All of them, by their words.
    pub const WORDS: [(&str, Self); 3] = [("none", Self::None), ("local", Self::Disk), ("replica", Self::Replica)];

    /// The word in configuration, messages and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Disk => "local",
            Self::Replica => "replica",
        }
    }
}
