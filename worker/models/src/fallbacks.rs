//! Several providers in order: the first that answers.

use std::sync::Arc;

use crate::error::{Class, Failure, ModelError};
use crate::message::{Answer, Invalid, Request};
use crate::provider::Provider;

/// An answer, and who gave it.
#[derive(Debug)]
pub struct Answered {
    /// The name of the provider.
    pub provider: String,
    /// What it said.
    pub answer: Answer,
    /// What those before it failed by.
    pub failed: Vec<ModelError>,
}

/// Providers in the order in which they are asked. Clones of a provider's `Arc` share its breaker.
#[derive(Debug, Clone)]
pub struct Models(Vec<Arc<Provider>>);

/// Why nobody answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The request is wrong, and was sent to nobody.
    #[error("the request was not sent: {0}")]
    Invalid(#[from] Invalid),
    /// What each of them failed by, in order.
    #[error("no model responded: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    All(Vec<ModelError>),
}

impl Unanswered {
    /// What it means for whoever asked: transient if one of them may answer later.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Invalid(_) => Class::Permanent,
            Self::All(errors) => errors.iter().map(ModelError::class).min().unwrap_or(Class::Permanent),
        }
    }

    /// The time for which all of them rest that may answer later: none of these was asked, and nothing was tried.
    #[must_use]
    pub fn rests_for(&self) -> Option<std::time::Duration> {
        let Self::All(errors) = self else { return None };
        let later = || errors.iter().filter(|error| error.class() == Class::Transient);
        let all_rest = later().all(|error| error.failure == Failure::Resting);
        if all_rest { later().filter_map(|error| error.retry_after).min() } else { None }
    }

    /// The shortest time after which one of them that may answer later wants to be asked; none where none said.
    #[must_use]
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        let Self::All(errors) = self else { return None };
        let mut later = errors.iter().filter(|error| error.class() == Class::Transient);
        // One that named no time may be asked at once.
        later.try_fold(None, |least: Option<std::time::Duration>, error| {
            let after = error.retry_after?;
            Some(Some(least.map_or(after, |least| least.min(after))))
        })?
    }
}

impl Models {
    /// `providers` in order.
    #[must_use]
    pub fn new(providers: Vec<Arc<Provider>>) -> Self {
        Self(providers)
    }

    /// Asks each in turn, once, until one answers. One that rests is passed over.
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

    /// The names of the providers in order, for whoever asks them one by one.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|provider| provider.name())
    }

    /// Of one of them, by its place in the order: whose API it speaks, by the names of OpenTelemetry, and its model.
    #[must_use]
    pub fn described(&self, at: usize) -> Option<(&'static str, &str)> {
        self.0.get(at).map(|provider| provider.described())
    }

    /// Asks one of them, once, by its place in the order. The request is checked already ([`Request::check`]).
    ///
    /// # Errors
    /// Why it did not answer; none such: [`Failure::NotFound`].
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
        // The request's fault says nothing about the provider, but that it is there.
        Err(error) if matches!(error.failure, Failure::BadRequest | Failure::TooLarge) => leave.answered(),
        Err(error) => leave.failed(error.retry_after),
    }
    asked
}
