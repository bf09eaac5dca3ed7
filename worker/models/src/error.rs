//! Why a model did not answer, and what that means for the caller.

use std::time::Duration;

/// How the caller should treat a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    /// A later request may succeed.
    Transient,
    /// The account is exhausted. Another provider may respond. This one will not respond before its account is
    /// funded.
    Exhausted,
    /// Repeating the request would not help.
    Permanent,
}

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFailure {
    /// 429: too many requests or tokens for now.
    RateLimited,
    /// 5xx (including 529), 408 or 409: the provider is currently unavailable.
    Unavailable,
    /// The complete answer did not arrive in time. The provider may have processed the request.
    Timeout,
    /// The connection failed or ended before the complete answer. The provider may have processed the request.
    Disconnected,
    /// The provider was not asked: its circuit breaker is open, or it asked for a pause.
    Resting,
    /// The quota or credit of the account is used up.
    QuotaSpent,
    /// 401 or 403: the key is invalid or lacks permission.
    Unauthorised,
    /// 404: the model or address does not exist.
    NotFound,
    /// Any other 4xx status. Also a request that was not sent because it would get such a status.
    BadRequest,
    /// The answer exceeds the size limit.
    TooLarge,
    /// The answer does not have this provider's format.
    Malformed,
    /// The address is not permitted.
    Blocked,
}

impl ModelFailure {
    /// The class of this failure.
    #[must_use]
    pub fn class(self) -> FailureClass {
        match self {
            Self::RateLimited | Self::Unavailable | Self::Timeout | Self::Disconnected | Self::Resting => {
                FailureClass::Transient
            }
            // Usually the page of a gateway instead of an answer. The next response is likely to be complete.
            Self::Malformed => FailureClass::Transient,
            Self::QuotaSpent => FailureClass::Exhausted,
            Self::Unauthorised | Self::NotFound | Self::BadRequest | Self::TooLarge | Self::Blocked => {
                FailureClass::Permanent
            }
        }
    }

    /// The label for metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Resting => "resting",
            Self::QuotaSpent => "quota_spent",
            Self::Unauthorised => "unauthorised",
            Self::NotFound => "not_found",
            Self::BadRequest => "bad_request",
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::Blocked => "blocked",
        }
    }
}

/// The error of a request that a model did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{provider}: {}: {detail}", failure.as_str())]
pub struct ModelError {
    /// The name of the provider.
    pub provider: String,
    /// The kind of failure.
    pub failure: ModelFailure,
    /// A description, bounded and without keys.
    pub detail: String,
    /// The pause that the provider asked for.
    pub retry_after: Option<Duration>,
    /// True if the provider may have processed the request and may charge for it: no status says that it did not.
    pub may_have_run: bool,
}

impl ModelError {
    /// How the caller should treat the failure.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        self.failure.class()
    }
}
