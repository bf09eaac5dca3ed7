//! What a call may do of which it is known whether its tool rests.

use crate::calls::trying::{Disposition, RestingCall};
use crate::calls::waiting::breakers::Leave;

/// What a call whose guards let it pass may do.
pub(in crate::calls) enum Permit<'a> {
    /// Call its tool.
    Call(Leave<'a>),
    /// Have the answer that is kept for it. Should that be gone when it comes to it, it rests.
    KeptAnswer(Box<RestingCall>),
}

impl<'a> Permit<'a> {
    /// Leave to call the tool, where no answer is kept after all.
    pub(in crate::calls) fn into_leave(self) -> Result<Leave<'a>, Disposition> {
        match self {
            Self::Call(leave) => Ok(leave),
            Self::KeptAnswer(rests) => Err(Disposition::Rests(rests)),
        }
    }
}
