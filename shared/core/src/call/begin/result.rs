use super::super::CallName;
use super::super::cache::CachedResult;
use super::super::claim::Claimant;
use super::super::facts::KnownFact;
use crate::transaction::Version;
use crate::turn::end::RenderedCall;
use crate::turn::{Turn, WaitReason};

#[derive(Debug, Clone)]
pub enum BeginResult {
    /// The call runs now, unless its result is cached.
    Started(Box<Started>),
    /// The call waits. The worker parks the slice with the section for this reason.
    Waits(WaitReason),
    Asks {
        /// The approval for an earlier form of the call, if one was requested: its ID, and the word for its state.
        before: Option<(String, &'static str)>,
    },
    /// People changed the arguments after the worker read the approval. The worker must read the approval again.
    ConsentChanged,
    Refused(Refusal),
    /// An equal call already has this result, which becomes the result of the call.
    AnsweredBy {
        /// The equal call, or this call itself if an earlier attempt has ended it.
        by: Claimant,
        /// JSON.
        result: String,
    },
    /// An equal call is over, but did not end its claim, see [`super::super::claim::ClaimResult::Abandoned`].
    Abandoned {
        by: Claimant,
        /// JSON; `None` if unknown.
        result: Option<String>,
    },
    /// Another attempt began the call, but the store lost its intent record in a restart. The worker of that attempt
    /// has reported the call's result. The caller settles the call with this result.
    Reported {
        call: RenderedCall,
    },
    /// Another attempt began the call. It is unknown whether the call took effect.
    Unknown,
    Canceled {
        reason: String,
    },
    Expired,
    /// The store restarted, and other workers may still report calls that they began. The caller reports its own begun
    /// calls, and tries to begin this call later.
    Hold,
    Stale,
}

impl BeginResult {
    /// Returns the word for logs and metrics.
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
    /// The version of the turn's record. The holder's next writes use it as the fence.
    pub version: Version,
    pub turn: Turn,
    /// Indexes of the unmet conditions in shadow mode.
    pub shadow: Vec<usize>,
    /// Time of the facts check. 0 if the call already passed an earlier check. `None` if the call needs no facts check.
    pub checked_ms: Option<i64>,
    /// Empty if the call needs no approval.
    pub agreed: Vec<String>,
    /// The cached result, if there is one. The call then ends with this result and does not run.
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
    /// The approval with this ID belongs to another call, so people were not asked about this call.
    NotAsked,
    /// An equal call is running, but waits for the end of this turn.
    EqualAbove {
        by: CallName,
    },
}
