//! The permission of a call, given whether its tool is available.

use crate::calls::trying::{Disposition, RestingCall};
use crate::calls::waiting::breakers::Leave;

/// The permission of a call that has passed its guards.
pub(in crate::calls) enum Permit<'a> {
    /// Call its tool.
    Call(Leave<'a>),
    /// Use the result that is cached or that an equal call has. If it is gone at the begin, the call waits for its
    /// tool.
    KeptAnswer(Box<RestingCall>),
}

impl<'a> Permit<'a> {
    /// Returns the permit to call the tool, if no result was found after all.
    pub(in crate::calls) fn into_leave(self) -> Result<Leave<'a>, Disposition> {
        match self {
            Self::Call(leave) => Ok(leave),
            Self::KeptAnswer(rests) => Err(Disposition::Rests(rests)),
        }
    }
}
