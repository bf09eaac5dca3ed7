//! One rule that a message breaks.

use tickfleet_model::RejectionCode;

/// A rule that a message breaks, with the words that say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) code: RejectionCode,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(code: RejectionCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
