use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    Transient,
    /// The account is exhausted. This provider responds only after its account is funded, but another provider can
    /// respond.
    Exhausted,
    Permanent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFailure {
    /// 429.
    RateLimited,
    /// 5xx (including 529), 408 or 409.
    Unavailable,
    /// The provider may have processed the request, but the complete answer did not arrive in time.
    Timeout,
    /// The provider may have processed the request, but the connection failed or ended before the complete answer.
    Disconnected,
    /// The provider was not asked: its circuit breaker is open, or the provider asked for a pause.
    BreakerOpen,
    QuotaSpent,
    /// 401 or 403.
    Unauthorised,
    /// 404.
    NotFound,
    /// Any other unsuccessful status. Also used for a request that was not sent because it would get such a status.
    BadRequest,
    TooLarge,
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
            // A malformed response is usually a gateway's page, so the next response is likely to be complete.
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
    /// Bounded, and without keys.
    pub detail: String,
    pub retry_after: Option<Duration>,
    /// True if no status rules out that the provider has processed the request and may charge for it.
    pub may_have_run: bool,
}

impl ModelError {
    #[must_use]
    pub fn class(&self) -> FailureClass {
        self.failure.class()
    }
}
