//! What keys are for: the verbs that they open, and whose things.

use serde::{Deserialize, Serialize};
use tickfleet_model::{IdError, TenantId};

/// What the holder of a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Submit turns, delegate tasks, talk with agents.
    Submit,
    /// Read replies, tasks and lists of tools.
    Read,
    /// End turns and tasks before their time.
    Cancel,
    /// Look at all that operators look at, and change nothing.
    View,
    /// Pause and resume, and end many turns.
    Operate,
    /// Approve and deny calls that wait for people.
    Approve,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Submit, Self::Read, Self::Cancel, Self::View, Self::Operate, Self::Approve];
    /// Those of services that have agents work.
    pub const OF_SERVICES: [Self; 3] = [Self::Submit, Self::Read, Self::Cancel];

    /// The verb as the file has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Cancel => "cancel",
            Self::View => "view",
            Self::Operate => "operate",
            Self::Approve => "approve",
        }
    }

    /// Returns true for those of people who look after the fleet.
    #[must_use]
    pub const fn is_of_operators(self) -> bool {
        matches!(self, Self::View | Self::Operate | Self::Approve)
    }
}

/// Whose turns, agents and approvals a key is about: `*` in the file stands for all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Whose {
    /// One tenant's.
    One(TenantId),
    /// Everybody's.
    All,
}

impl Whose {
    /// The tenant; none where it is about all.
    #[must_use]
    pub const fn one(&self) -> Option<&TenantId> {
        match self {
            Self::One(tenant) => Some(tenant),
            Self::All => None,
        }
    }
}

impl std::str::FromStr for Whose {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text == "*" { Ok(Self::All) } else { TenantId::new(text).map(Self::One) }
    }
}

impl TryFrom<String> for Whose {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Whose> for String {
    fn from(whose: Whose) -> Self {
        whose.one().map_or_else(|| "*".into(), ToString::to_string)
    }
}
