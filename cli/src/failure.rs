//! The failure of a command: what is told, and the exit code.

use tickfleet_client::SubmitError;
use tickfleet_store::StoreError;

/// The command failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong; the code that clap uses too.
pub(crate) const USAGE: u8 = 2;
/// Redis cannot be reached.
pub(crate) const REDIS: u8 = 3;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It failed, for this reason.
    Failed(anyhow::Error),
    /// It failed, and its output has said how.
    Told,
    /// Its arguments make no sense.
    Usage(String),
    /// Redis cannot be reached.
    Redis(String),
    /// Redis cannot be reached, and the message says what to do.
    RedisTold(String),
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
            Self::Failed(_) | Self::Told => FAILED,
            Self::Usage(_) => USAGE,
            Self::Redis(_) | Self::RedisTold(_) => REDIS,
        }
    }

    /// Returns the message; none if the output has told it.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Failed(reason) => Some(format!("{reason:#}")),
            Self::Usage(message) | Self::RedisTold(message) => Some(message.clone()),
            Self::Redis(message) => Some(format!(
                "{message}\nIs it running? --redis-url and REDIS_URL name another one; `tickfleet dev` starts one."
            )),
            Self::Told => None,
        }
    }
}

/// Returns true if Redis is away, rather than unwilling.
pub(crate) fn is_away(error: &StoreError) -> bool {
    match error {
        StoreError::Connect { .. } => true,
        StoreError::Verb { source, .. } => source.is_io_error() || source.is_timeout(),
        _ => false,
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let told = error.remedy().map(|remedy| format!("{error}\n{remedy}"));
        match (&error, told) {
            (away, Some(told)) if is_away(away) => Self::RedisTold(told),
            (away, None) if is_away(away) => Self::Redis(error.to_string()),
            (StoreError::Url(_), _) => Self::Usage(error.to_string()),
            (_, Some(told)) => Self::Failed(anyhow::anyhow!(told)),
            (_, None) => Self::failed(error),
        }
    }
}

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        match &error {
            SubmitError::Store(store) => match (is_away(store), store.remedy()) {
                (true, None) => Self::Redis(error.to_string()),
                (true, Some(remedy)) => Self::RedisTold(format!("{error}\n{remedy}")),
                (false, Some(remedy)) => Self::Failed(anyhow::anyhow!("{error}\n{remedy}")),
                (false, None) => Self::failed(error),
            },
            _ => Self::failed(error),
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
