//! How durable the begin of a call must be before the call runs.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Only in the memory of the primary: a failure of the primary may lose the record.
    #[default]
    None,
    /// Also in the fsynced append-only file of the primary.
    #[serde(rename = "local")]
    Disk,
    /// Also in the memory of a replica.
    Replica,
}

impl Durability {
    pub const WORDS: [(&str, Self); 3] = [("none", Self::None), ("local", Self::Disk), ("replica", Self::Replica)];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Disk => "local",
            Self::Replica => "replica",
        }
    }
}
