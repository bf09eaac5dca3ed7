//! Several providers in order. The first available provider answers.

use std::sync::Arc;

use crate::error::{FailureClass, ModelError, ModelFailure};
use crate::message::{InvalidRequest, ModelAnswer, ModelRequest};
use crate::provider::Provider;

/// In the order in which providers are asked. Clones of an `Arc` share the provider's breaker.
#[derive(Debug, Clone)]
pub struct ModelChain(Vec<Arc<Provider>>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelChainError {
    #[error("the request was not sent: {0}")]
    Invalid(#[from] InvalidRequest),
    #[error("no model responded: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    All(Vec<ModelError>),
}

impl ModelChainError {
    /// [`FailureClass::Transient`] if a provider can answer later.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Invalid(_) => FailureClass::Permanent,
            Self::All(errors) => errors.iter().map(ModelError::class).min().unwrap_or(FailureClass::Permanent),
        }
    }

    /// Returns the shortest pause if all providers that can answer later are paused.
    #[must_use]
    pub fn paused_for(&self) -> Option<std::time::Duration> {
        let Self::All(errors) = self else { return None };
        let later = || errors.iter().filter(|error| error.class() == FailureClass::Transient);
        let all_rest = later().all(|error| error.failure == ModelFailure::BreakerOpen);
        if all_rest { later().filter_map(|error| error.retry_after).min() } else { None }
    }

    /// `None` if no provider can answer later, or if any provider that can answer later named no time.
    #[must_use]
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        let Self::All(errors) = self else { return None };
        let mut later = errors.iter().filter(|error| error.class() == FailureClass::Transient);
        // A provider that named no time can be asked again at once, so the result is `None`.
        later.try_fold(None, |least: Option<std::time::Duration>, error| {
            let after = error.retry_after?;
            Some(Some(least.map_or(after, |least| least.min(after))))
        })?
    }
}

impl ModelChain {
    #[must_use]
    pub fn new(providers: Vec<Arc<Provider>>) -> Self {
        Self(providers)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|provider| provider.name())
    }

    /// Returns the API's owner (as OpenTelemetry names it) and the model.
    #[must_use]
    pub fn described(&self, at: usize) -> Option<(&'static str, &str)> {
        self.0.get(at).map(|provider| provider.described())
    }

    /// The caller must have checked the request. An invalid index gives [`ModelFailure::NotFound`].
    pub async fn ask_one(&self, at: usize, request: &ModelRequest) -> Result<ModelAnswer, ModelError> {
        match self.0.get(at) {
            Some(provider) => ask(provider, request).await,
            None => Err(ModelError {
                provider: String::new(),
                failure: ModelFailure::NotFound,
                detail: "unknown model".to_owned(),
                retry_after: None,
                may_have_run: false,
            }),
        }
    }
}

async fn ask(provider: &Provider, request: &ModelRequest) -> Result<ModelAnswer, ModelError> {
    let permit = provider.breaker.permit().map_err(|rest| ModelError {
        provider: provider.name().to_owned(),
        failure: ModelFailure::BreakerOpen,
        detail: format!("circuit breaker open for another {} s", rest.as_secs_f64().ceil()),
        retry_after: Some(rest),
        may_have_run: false,
    })?;
    let asked = provider.ask(request).await;
    match &asked {
        Ok(_) => permit.answered(),
        // The request caused the failure, so the provider is available.
        Err(error) if matches!(error.failure, ModelFailure::BadRequest | ModelFailure::TooLarge) => permit.answered(),
        Err(error) => permit.failed(error.retry_after),
    }
    asked
}
