use crate::calls::call_attempt::{AttemptOutcome, ToolUnavailable};
use crate::calls::waiting::breakers::CallPermit;

pub(in crate::calls) enum ToolAccess<'a> {
    Call(CallPermit<'a>),
    /// If the known result no longer exists when the call begins, the call waits for its tool.
    KnownResult(Box<ToolUnavailable>),
}

impl<'a> ToolAccess<'a> {
    /// Fails if the call may use only a known result: that result was not found.
    pub(in crate::calls) fn into_permit(self) -> Result<CallPermit<'a>, AttemptOutcome> {
        match self {
            Self::Call(permit) => Ok(permit),
            Self::KnownResult(unavailable) => Err(AttemptOutcome::ToolUnavailable(unavailable)),
        }
    }
}
