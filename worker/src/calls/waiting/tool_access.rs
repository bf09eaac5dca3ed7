//! The permission of a call, given whether its tool is available.

use crate::calls::call_attempt::{AttemptOutcome, ToolUnavailable};
use crate::calls::waiting::breakers::CallPermit;

/// The permission of a call that has passed its guards.
pub(in crate::calls) enum ToolAccess<'a> {
    /// Call its tool.
    Call(CallPermit<'a>),
    /// Use the result that is cached or that an equal call has. If it is gone at the begin, the call waits for its
    /// tool.
    KnownResult(Box<ToolUnavailable>),
}

impl<'a> ToolAccess<'a> {
    /// Returns the permit to call the tool, if no result was found after all.
    pub(in crate::calls) fn into_permit(self) -> Result<CallPermit<'a>, AttemptOutcome> {
        match self {
            Self::Call(permit) => Ok(permit),
            Self::KnownResult(unavailable) => Err(AttemptOutcome::ToolUnavailable(unavailable)),
        }
    }
}
