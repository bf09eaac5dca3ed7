use crate::calls::call_attempt::{AttemptOutcome, ToolUnavailable};
use crate::calls::waiting::breakers::CallPermit;

pub(in crate::calls) enum ToolAccess<'a> {
    Call(CallPermit<'a>),
    /// The call may use only a cached result, or the result of an equal call. If that result no longer exists when the
    /// call begins, the call waits for its tool.
    KnownResult(Box<ToolUnavailable>),
}

impl<'a> ToolAccess<'a> {
    /// If only a known result was allowed, no such result was found. The error is then the outcome of the waiting call.
    pub(in crate::calls) fn into_permit(self) -> Result<CallPermit<'a>, AttemptOutcome> {
        match self {
            Self::Call(permit) => Ok(permit),
            Self::KnownResult(unavailable) => Err(AttemptOutcome::ToolUnavailable(unavailable)),
        }
    }
}
