use std::time::Duration;

/// How the caller should treat a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    /// A later request can succeed.
    Transient,
    /// The account is exhausted. Another provider can respond, but this one responds only after its account is funded.
    Exhausted,
    /// A repetition of the request would not help.
    Permanent,
}

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
    /// The provider was not asked: its circuit breaker is open, or the provider asked for a pause.
    BreakerOpen,
    /// The quota or credit of the account is used up.
    QuotaSpent,
    /// 401 or 403: the key is invalid or lacks permission.
    Unauthorised,
    /// 404: the model or address does not exist.
    NotFound,
    /// Any other unsuccessful status. Also used for a request that was not sent because it would get such a status.
    BadRequest,
    TooLarge,
    /// The answer does not have this provider's format.
    Malformed,
    Blocked,
}

impl ModelFailure {
    #[must_use]
    pub fn class(self) -> FailureClass {
        match self {
            Self::RateLimited | Self::Unavailable | Self::Timeout | Self::Disconnected | Self::BreakerOpen => {
                FailureClass::Transient
            }
            // Usually a gateway's page instead of an answer. The next response is likely to be complete.
            Self::Malformed => FailureClass::Transient,
            Self::QuotaSpent => FailureClass::Exhausted,
            Self::Unauthorised | Self::NotFound | Self::BadRequest | Self::TooLarge | Self::Blocked => {
                FailureClass::Permanent
            }
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::BreakerOpen => "breaker_open",
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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{provider}: {}: {detail}", failure.as_str())]
pub struct ModelError {
    pub provider: String,
    pub failure: ModelFailure,
    /// A description, bounded and without keys.
    pub detail: String,
    /// The pause that the provider asked for.
    pub retry_after: Option<Duration>,
    /// True if the provider may have processed the request and may charge for it, because no status rules this out.
    pub may_have_run: bool,
}

impl ModelError {
    #[must_use]
    pub fn class(&self) -> FailureClass {
        self.failure.class()
    }
}
