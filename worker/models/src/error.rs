use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    Transient,
    /// This provider responds only after its account is funded, but another provider can respond.
    Exhausted,
    Permanent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFailure {
    /// 429.
    RateLimited,
    /// 5xx (including 529), 408 or 409.
    Unavailable,
    /// The provider may have processed the request.
    Timeout,
    /// The connection failed or ended. The provider may have processed the request.
    Disconnected,
    /// The circuit breaker is open, or the provider asked for a pause.
    BreakerOpen,
    QuotaSpent,
    /// 401 or 403.
    Unauthorized,
    /// 404.
    NotFound,
    /// Any other unsuccessful status, or a request that would get such a status.
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
            // A malformed response is usually a gateway's page, so the next response can be well-formed.
            Self::Malformed => FailureClass::Transient,
            Self::QuotaSpent => FailureClass::Exhausted,
            Self::Unauthorized | Self::NotFound | Self::BadRequest | Self::TooLarge | Self::Blocked => {
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
            Self::Unauthorized => "unauthorised",
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
    /// True if the provider may charge for the request.
    pub may_have_run: bool,
}

impl ModelError {
    #[must_use]
    pub fn class(&self) -> FailureClass {
        self.failure.class()
    }
}
