use crate::calls::call_attempt::{AttemptOutcome, ToolUnavailable};
use crate::calls::waiting::breakers::CallPermit;

pub(in crate::calls) enum ToolAccess<'a> {
    Call(CallPermit<'a>),
    /// Use the cached result, or the result of an equal call. If that result no longer exists when the call begins, the
    /// call waits for its tool.
    KnownResult(Box<ToolUnavailable>),
}

impl<'a> ToolAccess<'a> {
    /// Returns the permit. If only a known result was allowed and the result was not found, the error is the outcome of
    /// the waiting call.
    pub(in crate::calls) fn into_permit(self) -> Result<CallPermit<'a>, AttemptOutcome> {
        match self {
            Self::Call(permit) => Ok(permit),
            Self::KnownResult(unavailable) => Err(AttemptOutcome::ToolUnavailable(unavailable)),
        }
    }
}
