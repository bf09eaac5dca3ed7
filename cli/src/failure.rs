//! The failure of a command: its message and its exit code.

use tickfleet_client::SubmitError;
use tickfleet_client::verbs::VerbError;
use tickfleet_store::{Refusal, StoreError, refusal_in};

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const REDIS: u8 = 3;

#[derive(Debug)]
pub(crate) enum Failure {
    Failed(anyhow::Error),
    /// The output already contains the reason, so nothing more is printed.
    Reported,
    Usage(String),
    Redis(String),
    /// The message already contains a remedy, so no other remedy is added.
    RedisReported(String),
}

impl Failure {
    pub(crate) fn failed(reason: impl Into<anyhow::Error>) -> Self {
        Self::Failed(reason.into())
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Reported => FAILED,
            Self::Usage(_) => USAGE,
            Self::Redis(_) | Self::RedisReported(_) => REDIS,
        }
    }

    pub(crate) fn is_data_in_use(&self) -> bool {
        let Self::Failed(reason) = self else { return false };
        matches!(reason.downcast_ref::<StoreError>(), Some(StoreError::DataInUse(_)))
    }

    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Failed(reason) => {
                let remedy = refusal_in(reason.as_ref()).map(|refusal| format!("\n{}", refusal.remedy()));
                Some(format!("{reason:#}{}", remedy.unwrap_or_default()))
            }
            Self::Usage(message) | Self::RedisReported(message) => Some(message.clone()),
            Self::Redis(message) => Some(format!(
                "{message}\nIs it running? Set its address with --redis-url or REDIS_URL, or start one with \
                 `tickfleet dev`."
            )),
            Self::Reported => None,
        }
    }
}

pub(crate) fn is_unreachable(error: &StoreError) -> bool {
    match error {
        StoreError::Connect { .. } | StoreError::DevSocket { .. } => true,
        StoreError::Verb { source, .. } => source.is_io_error() || source.is_timeout(),
        _ => false,
    }
}

fn unreachable(error: &StoreError) -> Option<Failure> {
    is_unreachable(error).then(|| match error.remedy() {
        Some(remedy) => Failure::RedisReported(format!("{error}\n{remedy}")),
        None => Failure::Redis(error.to_string()),
    })
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Url(_) => Self::Usage(error.to_string()),
            _ => unreachable(&error).unwrap_or_else(|| Self::failed(error)),
        }
    }
}

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        match &error {
            SubmitError::Store(store) => unreachable(store).unwrap_or_else(|| Self::failed(error)),
            SubmitError::Pressure => Self::Failed(anyhow::anyhow!("{error}\n{}", Refusal::Memory.remedy())),
            _ => Self::failed(error),
        }
    }
}

impl From<VerbError> for Failure {
    fn from(error: VerbError) -> Self {
        match error {
            VerbError::Invalid(message) => Self::Usage(message),
            VerbError::Store(error) => error.into(),
            other => Self::failed(other),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<tickfleet_model::IdError> for Failure {
    fn from(error: tickfleet_model::IdError) -> Self {
        Self::Usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_wrapped_redis_rejection_reports_its_remedy_once() {
        let reply = b"-NOREPLICAS Not enough good replicas to write.\r\n";
        let error = || StoreError::Verb {
            verb: "submit",
            source: redis::parse_redis_value(reply).unwrap().extract_error().unwrap_err(),
        };
        let wrapped = Err::<(), _>(error()).context("the audit log cannot be read").unwrap_err();
        for failure in [Failure::from(error()), SubmitError::from(error()).into(), wrapped.into()] {
            let message = failure.message().unwrap();
            assert_eq!(message.matches(Refusal::Replicas.remedy()).count(), 1, "{message}");
            assert_eq!(failure.code(), FAILED);
        }
        let broken =
            || StoreError::Verb { verb: "submit", source: std::io::Error::from(std::io::ErrorKind::BrokenPipe).into() };
        for failure in [Failure::from(broken()), SubmitError::from(broken()).into()] {
            assert!(failure.message().unwrap().contains("Is it running?") && failure.code() == REDIS);
        }
    }
}
