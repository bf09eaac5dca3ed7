//! Why a task does not go on now.

use std::time::Duration;

use tickfleet_models::{Class, Unanswered};
use tickfleet_store::StoreError;
use tickfleet_tools::{Awaited, ToolFailure};

pub(crate) fn transient(message: String, retry_after: Option<Duration>) -> ToolFailure {
    ToolFailure::Transient { message, retry_after, not_executed: false }
}

pub(crate) fn refused(message: String) -> ToolFailure {
    ToolFailure::Permanent { message, details: None }
}

pub(crate) fn internal(error: impl std::fmt::Display) -> ToolFailure {
    ToolFailure::Internal { message: error.to_string() }
}

pub(crate) fn away(error: StoreError) -> ToolFailure {
    transient(error.to_string(), None)
}

/// Whatever is said of the slice now is stale too.
pub(crate) fn stale() -> ToolFailure {
    transient("Another worker carries the task out now.".to_owned(), None)
}

/// Where every model that may answer later rests, none was asked: that is no try of the task, which waits without a slot.
pub(crate) fn unanswered(error: &Unanswered) -> ToolFailure {
    if let Some(at_most) = error.rests_for() {
        return ToolFailure::Waits { awaits: Awaited::Time, at_most };
    }
    match error.class() {
        Class::Transient => transient(error.to_string(), error.retry_after()),
        Class::Exhausted | Class::Permanent => refused(error.to_string()),
    }
}
