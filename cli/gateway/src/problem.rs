//! Error responses: `{"error": {"code", "message"}}`, with a matching status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tickfleet_client::verbs::VerbError;
use tickfleet_client::{RejectedMessage, SessionError, StoreError, SubmitError};
use tickfleet_protocol::{RejectedId, RejectionStatus, rejection_reply};
use tickfleet_store::Refusal;
use utoipa::ToSchema;

use crate::serving::bounds::PermitBounds;

const RETRY_AFTER_S: u64 = 1;

const RATE: &str = "rate_exceeded";

const DAMAGED: &str = "damaged";

const WRONG_KEYS: &str = "too_many_wrong_keys";

/// Metrics distinguish requests that came too fast from requests to a full queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RateRejection {
    Rate,
    WrongKeys,
}

#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: String,
    message: String,
    retry_after_s: Option<u64>,
    /// The reply to an invalid turn, as JSON. Replaces code and message.
    reply: Option<String>,
}

/// Body of every response that is not a success.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// The error.
    error: ProblemError,
}

/// The error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemError {
    /// Error code for programs, such as `queue_full` or `conflict`.
    #[schema(example = "queue_full")]
    code: String,
    /// Message for people: the error, its place, and the expected value.
    message: String,
}

impl Problem {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into(), retry_after_s: None, reply: None }
    }

    pub(crate) fn named(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self::new(status, code, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// Callers do not receive the reason, because it may contain addresses and user names.
    pub(crate) fn unavailable(reason: &str) -> Self {
        tracing::warn!(reason, "request failed");
        let message = "the fleet's Redis does not respond or the configuration is unreadable: see the gateway's log";
        Self::later(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub(crate) fn redis_not_reached() -> Self {
        let message = "the fleet's Redis has not responded since this gateway started; retry the request";
        Self::later(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "method not allowed; GET /v1/openapi.json lists the methods of each path";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub(crate) fn too_large() -> Self {
        let max = tickfleet_model::limits::TURN_BYTES_MAX;
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("a body has at most {max} bytes"))
    }

    pub(crate) fn no_randomness() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the gateway's random number generator failed")
    }

    /// The bool is true if a retry may succeed later.
    pub(crate) fn summary(&self) -> (&str, bool) {
        (&self.message, self.retry_after_s.is_some())
    }

    /// True if a record in Redis cannot be read. A retry would fail again.
    pub(crate) fn is_damaged(&self) -> bool {
        self.code == DAMAGED
    }

    fn later(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { retry_after_s: Some(RETRY_AFTER_S), ..Self::new(status, code, message) }
    }

    pub(crate) fn issuer_unavailable() -> Self {
        let message = "the issuer's keys are unavailable, so this token cannot be verified";
        Self::later(StatusCode::SERVICE_UNAVAILABLE, "issuer_unavailable", message)
    }

    pub(crate) fn no_sign_in() -> Self {
        Self::not_found("this gateway offers no sign-in at an identity provider: use an API key or a token")
    }

    pub(crate) fn sign_in_unavailable() -> Self {
        let message =
            "the identity provider does not respond as expected; sign in again in a minute, or use an API key";
        Self::later(StatusCode::SERVICE_UNAVAILABLE, "issuer_unavailable", message)
    }

    /// The identity provider rejects the gateway itself, which only an operator can fix.
    pub(crate) fn sign_in_misconfigured(problem: &str) -> Self {
        let message = format!(
            "the identity provider did not accept the request of this gateway: {problem}; fleet operator: check \
             --oidc-client-id, --oidc-client-secret and the client's settings at the provider"
        );
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(crate) fn too_many_sign_ins() -> Self {
        Self::later(StatusCode::TOO_MANY_REQUESTS, "busy", "too many sign-ins at once; sign in again in a minute")
    }

    pub(crate) fn over_rate(who: &str, per_second: u32, seconds: u64) -> Self {
        let message = format!("{who} may send {per_second} requests a second; retry after Retry-After");
        Self { retry_after_s: Some(seconds), ..Self::new(StatusCode::TOO_MANY_REQUESTS, RATE, message) }
    }

    pub(crate) fn too_many_wrong(seconds: u64) -> Self {
        let message = "too many invalid keys, tokens or sign-ins from this address: this one was not checked; retry after Retry-After";
        Self { retry_after_s: Some(seconds), ..Self::new(StatusCode::TOO_MANY_REQUESTS, WRONG_KEYS, message) }
    }

    pub(crate) fn is_unauthorized(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    pub(crate) fn too_many_watch(PermitBounds { all, caller, .. }: PermitBounds) -> Self {
        let message = format!(
            "too many live views (at most {all}, and {caller} with this key); poll GET /v1/operate/overview instead"
        );
        Self::later(StatusCode::TOO_MANY_REQUESTS, "too_many_watching", message)
    }

    pub(crate) fn too_many_follow(PermitBounds { tenant, caller, .. }: PermitBounds) -> Self {
        let message = format!(
            "too many open event streams (at most {tenant} per tenant and {caller} per key): wait for the reply with GET /v1/turns/{{turn_id}}?wait=60"
        );
        Self::later(StatusCode::TOO_MANY_REQUESTS, "too_many_watching", message)
    }

    pub(crate) fn too_many_wait(PermitBounds { all, tenant, caller }: PermitBounds) -> Self {
        let message = format!(
            "too many requests wait on this gateway (at most {all}, {tenant} per tenant and {caller} per key): nothing was accepted; retry, or do not wait"
        );
        Self::later(StatusCode::TOO_MANY_REQUESTS, "too_many_waiting", message)
    }

    pub(crate) fn too_many_connections(max: usize) -> Self {
        let message = format!("too many open connections with this key (at most {max}): reuse open connections");
        Self::later(StatusCode::TOO_MANY_REQUESTS, "too_many_connections", message)
    }
}

/// Redis responds but rejects commands. Only the fleet's operator can fix this.
pub(crate) fn refused_by_redis(refusal: Refusal) -> String {
    format!(
        "the fleet's Redis rejects commands ({}); fleet operator: {}; the same request with the same id can be retried",
        refusal.as_str(),
        refusal.remedy()
    )
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // Callers do not receive the error, because it may contain addresses and user names.
        tracing::warn!(%error, "request failed at Redis");
        if error.is_script_error() {
            let message = "the record in Redis is unreadable: see the gateway's log";
            return Self::new(StatusCode::INTERNAL_SERVER_ERROR, DAMAGED, message);
        }
        let message = error.refusal().map_or_else(
            || "the fleet's Redis does not respond; the same request with the same id can be retried".to_owned(),
            refused_by_redis,
        );
        Self::later(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }
}

impl From<VerbError> for Problem {
    fn from(error: VerbError) -> Self {
        match error {
            VerbError::Invalid(message) => Self::invalid(message),
            VerbError::Forbidden(message) => Self::forbidden(message),
            VerbError::Unknown(message) => Self::not_found(message),
            VerbError::Conflict(message) => Self::conflict(message),
            VerbError::Unavailable(reason) => Self::unavailable(&reason),
            VerbError::Store(error) => error.into(),
        }
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Invalid(_) => Self::invalid(message),
            SubmitError::Conflict(_) => Self::new(StatusCode::CONFLICT, "conflict", message),
            SubmitError::QueueFull => Self::later(StatusCode::TOO_MANY_REQUESTS, "queue_full", message),
            SubmitError::InboxFull => Self::later(StatusCode::TOO_MANY_REQUESTS, "inbox_full", message),
            SubmitError::TooManyInboxes => Self::later(StatusCode::TOO_MANY_REQUESTS, "too_many_inboxes", message),
            SubmitError::Pressure => Self::later(
                StatusCode::SERVICE_UNAVAILABLE,
                "pressure",
                format!("{message}; fleet operator: {}", Refusal::Memory.remedy()),
            ),
            SubmitError::Store(error) => {
                tracing::warn!(%error, "turn not submitted");
                let message = error.refusal().map_or_else(
                    || "the fleet's Redis did not respond; a retry with the same id runs once".to_owned(),
                    refused_by_redis,
                );
                Self::later(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            }
        }
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::Submit(error) => error.into(),
            SessionError::Store(error) => error.into(),
            SessionError::Others(_) => Self::new(StatusCode::CONFLICT, "conflict", message),
            SessionError::Busy => Self::later(StatusCode::TOO_MANY_REQUESTS, "busy", message),
            SessionError::Length { .. } => Self::invalid(message),
        }
    }
}

impl From<Box<RejectedMessage>> for Problem {
    fn from(refused: Box<RejectedMessage>) -> Self {
        // The reply has a result for each readable call, so that the conversation can continue.
        let id = refused.turn_id.as_ref().filter(|_| refused.tenant.is_some());
        let reply = id.map(|id| rejection_reply(&refused, RejectionStatus::Rejected, RejectedId::Turn(id)));
        Self { reply, ..Self::new(StatusCode::BAD_REQUEST, refused.code.as_str(), refused.message) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let too_fast = match self.code.as_str() {
            RATE => Some(RateRejection::Rate),
            WRONG_KEYS => Some(RateRejection::WrongKeys),
            _ => None,
        };
        let body = ProblemBody { error: ProblemError { code: self.code, message: self.message } };
        let mut response = match self.reply {
            Some(reply) => (self.status, [(header::CONTENT_TYPE, "application/json")], reply).into_response(),
            None => (self.status, Json(body)).into_response(),
        };
        if let Some(too_fast) = too_fast {
            response.extensions_mut().insert(too_fast);
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_redis_rejection_is_reported_with_its_remedy() {
        let reply = "NOREPLICAS Not enough good replicas to write.";
        let error = || StoreError::Verb {
            verb: "submit",
            source: redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap().extract_error().unwrap_err(),
        };
        for problem in [Problem::from(error()), Problem::from(SubmitError::from(error()))] {
            let (message, is_later) = problem.summary();
            assert!(message.contains(Refusal::Replicas.remedy()) && is_later, "{message}");
            assert!(!message.contains(reply), "what the server said is for the log: {message}");
        }
        let away =
            StoreError::Verb { verb: "submit", source: std::io::Error::from(std::io::ErrorKind::BrokenPipe).into() };
        assert!(Problem::from(away).summary().0.contains("does not respond"));
    }
}
