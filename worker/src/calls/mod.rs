//! The calls of a slice, from its lease to its last result.
//!
//! Read in this order: [`turn`] (one slice from end to end), `parking` (a slice that goes on later), [`call`] (one call from
//! end to end), [`guards`] (the conditions before a call runs), `waiting` (whether its tool is called at all), `begin` (the
//! one decision that begins it), `governed` (its sections: people who have to agree, facts of its session, agents in loops,
//! cached results), `effects` (equal calls of a tool with an effect key), `ends` (the sections of its end), `reconcile`
//! (whether a call took effect of which nobody knows), `attempt` (one try), `trying` (what is known of one), `inner` (calls
//! that a tool makes), `state` (what all of these need), `messages` (the texts that a model gets), `spans` (OpenTelemetry's names), [`trial`] (one call outside
//! of a fleet), [`recalled`] (one of the audit log).

mod attempt;
mod begin;
pub mod call;
mod effects;
pub(crate) mod ends;
pub(crate) mod governed;
pub mod guards;
mod inner;
pub(crate) mod messages;
mod parking;
mod questions;
pub mod recalled;
mod reconcile;
mod spans;
pub(crate) mod state;
pub mod trial;
mod trying;
pub mod turn;
pub(crate) mod waiting;
