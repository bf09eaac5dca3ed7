//! The results of a begin.

use super::super::CallName;
use super::super::cache::CachedResult;
use super::super::claim::Claimant;
use super::super::facts::KnownFact;
use crate::transaction::Version;
use crate::turn::end::RenderedCall;
use crate::turn::{Turn, WaitReason};

/// The result of [`super::Begin`].
#[derive(Debug, Clone)]
pub enum BeginResult {
    /// The call runs now, unless its result is cached.
    Started(Box<Started>),
    /// The call waits. The worker parks the slice with the section that belongs to this reason.
    Waits(WaitReason),
    /// The call needs an approval first.
    Asks {
        /// If an approval was requested for an earlier form of the call: its ID, and the word for its state.
        before: Option<(String, &'static str)>,
    },
    /// People changed the arguments after the worker read the approval. The worker reads it again.
    ConsentChanged,
    /// The call ends without running.
    Refused(Refusal),
    /// An equal call already has this result, which becomes the result of the call.
    AnsweredBy {
        /// The equal call; it may be this call.
        by: Claimant,
        /// The result of the equal call, JSON.
        result: String,
    },
    /// An equal call is over, but its claim was not ended, see [`super::super::claim::ClaimResult::Abandoned`].
    Abandoned {
        /// The equal call.
        by: Claimant,
        /// The result of the equal call, JSON. `None` if it is unknown.
        result: Option<String>,
    },
    /// Another attempt ran the call, and the store lost its begin. The worker of that attempt has reported the result.
    /// The caller settles the call with this result.
    Reported {
        /// The result.
        call: RenderedCall,
    },
    /// Another attempt began the call. It is unknown whether it took effect.
    Unknown,
    /// The turn is canceled.
    Canceled {
        /// The reason.
        reason: String,
    },
    /// The turn's deadline has passed.
    Expired,
    /// The store restarted, and another worker may still report calls that it began. The caller reports the calls that
    /// it began itself, and begins this call again later.
    Hold,
    /// The caller no longer holds the slice.
    Stale,
}

impl BeginResult {
    /// The word for logs and metrics.
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

/// A call that runs now.
#[derive(Debug, Clone)]
pub struct Started {
    /// The version of the turn's record. It is the fence for the holder's next writes.
    pub version: Version,
    /// The turn's record at that version.
    pub turn: Turn,
    /// Indexes of the unmet shadow-mode conditions.
    pub shadow: Vec<usize>,
    /// Time of the facts check, ms. 0 if the call already passed an earlier check. `None` if the call needs no facts
    /// check.
    pub checked_ms: Option<i64>,
    /// The people who agreed; empty if the call needs no approval.
    pub agreed: Vec<String>,
    /// The cached result, if there is one. The call ends with it.
    pub cached: Option<CachedResult>,
}

/// The reason that a call ends without running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Equal calls were repeated too often.
    Streak {
        /// End of the refusal, ms.
        until_ms: i64,
    },
    /// A condition is not met.
    Fact {
        /// Index of the condition.
        condition: usize,
        /// The known state of its fact.
        known: KnownFact,
    },
    /// The session has no room for the facts that the call would set.
    FactsFull,
    /// A person denied the call.
    Denied {
        /// The person.
        by: String,
        /// The person's reason.
        reason: String,
    },
    /// People did not agree in time.
    ConsentExpired {
        /// Time of the expiry, ms.
        since_ms: i64,
    },
    /// The approval with this ID belongs to another call.
    NotAsked,
    /// An equal call is under way, and waits for the end of this turn.
    EqualAbove {
        /// The equal call.
        by: CallName,
    },
}
