use super::super::CallName;
use super::super::cache::CachedResult;
use super::super::claim::Claimant;
use super::super::facts::KnownFact;
use crate::transaction::Version;
use crate::turn::end::RenderedCall;
use crate::turn::{Turn, WaitReason};

#[derive(Debug, Clone)]
pub enum BeginResult {
    Started(Box<Started>),
    /// The worker parks the slice with the section for this reason.
    Waits(WaitReason),
    Asks {
        /// The approval for an earlier form of the call, and the word for its state.
        before: Option<(String, &'static str)>,
    },
    ConsentChanged,
    Refused(Refusal),
    /// The call receives the result of an equal call.
    AnsweredBy {
        /// Can be this call, if an earlier attempt has ended it.
        by: Claimant,
        /// JSON.
        result: String,
    },
    /// See [`super::super::claim::ClaimResult::Abandoned`].
    Abandoned {
        by: Claimant,
        /// JSON; `None` if unknown.
        result: Option<String>,
    },
    /// The store lost another attempt's intent record in a restart, and that attempt's worker has reported the result.
    /// The caller settles the call with this result.
    Reported {
        call: RenderedCall,
    },
    /// Another attempt began the call, and its result is unknown.
    Unknown,
    Canceled {
        reason: String,
    },
    Expired,
    /// After a restart of the store, the caller reports its begun calls, and tries again later.
    Hold,
    Stale,
}

impl BeginResult {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Started(_) => "started",
            Self::Waits(_) => "waits",
            Self::Asks { .. } => "asks",
            Self::ConsentChanged => "consent_changed",
            Self::Refused(_) => "refused",
            Self::AnsweredBy { .. } => "answered",
            Self::Abandoned { .. } => "abandoned",
            Self::Reported { .. } => "reported",
            Self::Unknown => "unknown",
            Self::Canceled { .. } => "canceled",
            Self::Expired => "expired",
            Self::Hold => "hold",
            Self::Stale => "stale",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Started {
    /// The fence of the holder's next writes.
    pub version: Version,
    pub turn: Turn,
    /// Indexes of unmet shadow-mode conditions.
    pub shadow: Vec<usize>,
    /// 0 if an earlier check passed. `None` without facts.
    pub checked_ms: Option<i64>,
    /// Empty if the call needs no approval.
    pub agreed: Vec<String>,
    /// The call ends with this result and does not run.
    pub cached: Option<CachedResult>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Streak {
        until_ms: i64,
    },
    Fact {
        condition: usize,
        known: KnownFact,
    },
    FactsFull,
    Denied {
        by: String,
        reason: String,
    },
    ConsentExpired {
        since_ms: i64,
    },
    NotAsked,
    /// The equal call waits for the end of this turn.
    EqualAbove {
        by: CallName,
    },
}
