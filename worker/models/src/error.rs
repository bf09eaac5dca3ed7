//! Why a model gave no answer, and what that means for whoever asked.

use std::time::Duration;

/// What a failure means for whoever asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Asking again later may succeed.
    Transient,
    /// The account has nothing left: another provider may, this one not before somebody pays.
    Exhausted,
    /// Asking again changes nothing.
    Permanent,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// 429: too many requests or tokens for now.
    RateLimited,
    /// 5xx, 408, 409 or 529: the provider cannot at present.
    Unavailable,
    /// No whole answer in time. The provider may have carried it out.
    Timeout,
    /// The connection failed or ended before the whole answer. The provider may have carried it out.
    Disconnected,
    /// Not asked: it failed too often, or asked for a pause.
    Resting,
    /// The quota or credit of the account is used up.
    QuotaSpent,
    /// 401 or 403: the key is wrong, or may not do this.
    Unauthorised,
    /// 404: no such model or address.
    NotFound,
    /// Any other 4xx, or a request that we did not send because it would be one.
    BadRequest,
    /// An answer of more bytes than are read.
    TooLarge,
    /// An answer that is not what this provider answers.
    Malformed,
    /// The address is not allowed.
    Blocked,
}

impl Failure {
    /// The class that it is of.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::RateLimited | Self::Unavailable | Self::Timeout | Self::Disconnected | Self::Resting => {
                Class::Transient
            }
            // A gateway's page in place of an answer: the next one is likely whole.
            Self::Malformed => Class::Transient,
            Self::QuotaSpent => Class::Exhausted,
            Self::Unauthorised | Self::NotFound | Self::BadRequest | Self::TooLarge | Self::Blocked => Class::Permanent,
        }
    }

    /// The word for metrics.
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

/// A request that a model did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{provider}: {}: {detail}", failure.as_str())]
pub struct ModelError {
    /// The name of the provider.
    pub provider: String,
    /// What happened.
    pub failure: Failure,
    /// It in words, bounded and without keys.
    pub detail: String,
    /// The time that the provider wants to be left alone.
    pub retry_after: Option<Duration>,
    /// True if the provider may have carried the request out, and charge for it: no status says that it did not.
    pub may_have_run: bool,
}

impl ModelError {
    /// What it means for whoever asked.
    #[must_use]
    pub fn class(&self) -> Class {
        self.failure.class()
    }
}
