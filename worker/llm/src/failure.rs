use std::time::Duration;

use tickfleet_models::{FailureClass, ModelChainError};
use tickfleet_store::StoreError;
use tickfleet_tools::{Awaited, ToolFailure};

pub(crate) fn transient(message: String, retry_after: Option<Duration>) -> ToolFailure {
    ToolFailure::Transient { message, retry_after, not_executed: false }
}

pub(crate) fn refused(message: String) -> ToolFailure {
    ToolFailure::permanent(message, None)
}

pub(crate) fn internal(error: impl std::fmt::Display) -> ToolFailure {
    ToolFailure::Internal { message: error.to_string() }
}

pub(crate) fn store_unavailable(error: StoreError) -> ToolFailure {
    transient(error.to_string(), None)
}

pub(crate) fn stale() -> ToolFailure {
    transient("Another worker now runs the task.".to_owned(), None)
}

/// If every model that can respond later is paused, no request was sent. So the wait does not count as an attempt.
pub(crate) fn unanswered(error: &ModelChainError) -> ToolFailure {
    if let Some(at_most) = error.paused_for() {
        return ToolFailure::Waits { awaits: Awaited::Time, at_most };
    }
    match error.class() {
        FailureClass::Transient => transient(error.to_string(), error.retry_after()),
        FailureClass::Exhausted | FailureClass::Permanent => refused(error.to_string()),
    }
}
