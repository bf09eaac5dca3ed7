//! Turns and tasks: the record, its states, and one file per transition.
//!
//! ```text
//!               admit ─────────────► Throttled ◄──────────────┐
//!                 │                      │ release            │ settle: calls left,
//!                 └──────► Ready ◄───────┘                    │ resume: permits returned
//!                            │  begin                         │
//!                            ├────────► Running ──┐           │
//!                            │                    │           │
//!      Retrying, Waiting ◄───┴── park ◄───────────┤ settle ───┤
//!             │                                   │           │
//!             └── resume ──► Ready                └───────────┴──► finished
//!
//!   every state ── expire, cancel, quarantine ──► finished   (Ending first, during one lease after a restart)
//! ```
//!
//! A cancellation does not change the turn's record: a new version would fence off the worker that runs the slice, and
//! lose results. So a cancellation writes a [`Cancellation`], and makes the turn's timer due. [`Due`] then ends the
//! turn or notifies the holder.
//!
//! Only [`Due`] may move the timer to a later time. Otherwise a transition could delay a cancellation or the deadline.

pub mod admit;
pub mod advance;
pub mod cancellation;
pub mod dead_letter;
pub mod due;
pub mod end;
pub(crate) mod expire;
pub(crate) mod holder;
pub mod limit;
pub mod local;
pub mod park;
mod parked;
pub mod reject;
pub mod release;
pub mod requeue;
mod resume;
pub mod settle;
pub mod slice;
pub mod state;
pub mod submit;
#[cfg(test)]
mod tests;
pub mod throttle;

pub use cancellation::Cancellation;
pub use due::{Due, DueResult, EndSection};
pub use local::{Conclude, Concluded, Offer, OfferResult};
pub use park::{Park, ParkReason, ParkResult};
pub use requeue::{DeadLetterStrayEntry, RequeueReason, RequeueResult, RequeueSlice, RequeueUnreadable};
pub use settle::{Settle, SettleResult};
pub use slice::Slice;
pub use state::{Begun, Destination, Head, LocalCall, Note, State, Suspect, TaskPart, Turn, WaitReason};
