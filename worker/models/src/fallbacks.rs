//! Several providers in order, of which the first available one answers.

use std::sync::Arc;

use crate::error::{Class, Failure, ModelError};
use crate::message::{Answer, Invalid, Request};
use crate::provider::Provider;

/// An answer, and the provider that gave it.
#[derive(Debug)]
pub struct Answered {
    /// The name of the provider.
    pub provider: String,
    /// The answer.
    pub answer: Answer,
    /// The failures of the providers before it.
    pub failed: Vec<ModelError>,
}

/// Providers in the order in which they are asked. Clones of a provider's `Arc` share its breaker.
#[derive(Debug, Clone)]
pub struct Models(Vec<Arc<Provider>>);

/// Why no provider answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The request is invalid and was not sent.
    #[error("the request was not sent: {0}")]
    Invalid(#[from] Invalid),
    /// The failure of each provider, in order.
    #[error("no model responded: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    All(Vec<ModelError>),
}

impl Unanswered {
    /// How the caller should treat it: as transient if a provider may answer later.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Invalid(_) => Class::Permanent,
            Self::All(errors) => errors.iter().map(ModelError::class).min().unwrap_or(Class::Permanent),
        }
    }

    /// The shortest pause, if all providers that may answer later are paused. Then none of them was asked, and nothing
    /// was attempted.
    #[must_use]
    pub fn rests_for(&self) -> Option<std::time::Duration> {
        let Self::All(errors) = self else { return None };
        let later = || errors.iter().filter(|error| error.class() == Class::Transient);
        let all_rest = later().all(|error| error.failure == Failure::Resting);
        if all_rest { later().filter_map(|error| error.retry_after).min() } else { None }
    }

    /// The shortest time after which a provider that may answer later wants to be asked again; `None` if one of them
    /// named no time.
    #[must_use]
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        let Self::All(errors) = self else { return None };
        let mut later = errors.iter().filter(|error| error.class() == Class::Transient);
        // A provider that named no time may be asked at once.
        later.try_fold(None, |least: Option<std::time::Duration>, error| {
            let after = error.retry_after?;
            Some(Some(least.map_or(after, |least| least.min(after))))
        })?
    }
}

impl Models {
    /// Creates a list of providers in this order.
    #[must_use]
    pub fn new(providers: Vec<Arc<Provider>>) -> Self {
        Self(providers)
    }

    /// Asks each provider in turn, once, until one answers. Paused providers are skipped.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn ask(&self, request: &Request) -> Result<Answered, Unanswered> {
        request.check()?;
        let mut failed = Vec::new();
        for provider in &self.0 {
            match ask(provider, request).await {
                Ok(answer) => return Ok(Answered { provider: provider.name().to_owned(), answer, failed }),
                Err(error) => failed.push(error),
            }
        }
        Err(Unanswered::All(failed))
    }

    /// The names of the providers in order, for callers that ask them one by one.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|provider| provider.name())
    }

    /// The API owner (by OpenTelemetry's names) and the model of the provider with this index.
    #[must_use]
    pub fn described(&self, at: usize) -> Option<(&'static str, &str)> {
        self.0.get(at).map(|provider| provider.described())
    }

    /// Asks the provider with this index once. The caller must have checked the request ([`Request::check`]).
    ///
    /// # Errors
    /// Why it did not answer; [`Failure::NotFound`] if the index is invalid.
    pub async fn ask_one(&self, at: usize, request: &Request) -> Result<Answer, ModelError> {
        match self.0.get(at) {
            Some(provider) => ask(provider, request).await,
            None => Err(ModelError {
                provider: String::new(),
                failure: Failure::NotFound,
                detail: "unknown model".to_owned(),
                retry_after: None,
                may_have_run: false,
            }),
        }
    }
}

async fn ask(provider: &Provider, request: &Request) -> Result<Answer, ModelError> {
    let leave = provider.breaker.leave().map_err(|rest| ModelError {
        provider: provider.name().to_owned(),
        failure: Failure::Resting,
        detail: format!("circuit breaker open for another {} s", rest.as_secs_f64().ceil()),
        retry_after: Some(rest),
        may_have_run: false,
    })?;
    let asked = provider.ask(request).await;
    match &asked {
        Ok(_) => leave.answered(),
        // The request is at fault, so this only shows that the provider responds.
        Err(error) if matches!(error.failure, Failure::BadRequest | Failure::TooLarge) => leave.answered(),
        Err(error) => leave.failed(error.retry_after),
    }
    asked
}
