//! The calls of a slice, from its lease to its last result.
//!
//! Read in this order:
//!
//! - [`turn`]: one slice, from end to end.
//! - `parking`: a slice that continues later.
//! - [`call`]: one call, from end to end.
//! - [`guards`]: the conditions before a call runs.
//! - `waiting`: whether a call's tool is called at all.
//! - `begin`: the single decision that begins a call.
//! - `governed`: the sections of that decision: approval by people, facts of the session, agents in loops, cached
//!   results.
//! - `claims`: equal calls of a tool with an effect key.
//! - `end_effects`: the effects that the end of a call has on other records.
//! - `reconcile`: whether a call with an unknown outcome took effect.
//! - `attempt`: runs the handler once.
//! - `call_attempt`: state and outcome of one attempt.
//! - `inner`: calls that a tool makes.
//! - `local`: calls that the caller's process runs.
//! - `state`: shared state.
//! - `messages`: texts for models.
//! - `spans`: OpenTelemetry spans.
//! - [`trial`]: one call outside a fleet.
//! - [`logged_call`]: a call from the audit log.

mod attempt;
mod begin;
pub mod call;
mod call_attempt;
mod claims;
pub(crate) mod end_effects;
pub(crate) mod governed;
pub mod guards;
mod inner;
mod local;
pub mod logged_call;
pub(crate) mod messages;
mod parking;
mod progress;
mod reconcile;
mod reconcile_progress;
mod spans;
pub(crate) mod state;
pub mod trial;
pub mod turn;
pub(crate) mod waiting;
