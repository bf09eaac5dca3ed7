//! The calls of a slice, from its lease to its last result.
//!
//! Read in this order: [`turn`] (one slice from end to end), `parking` (a slice that goes on later), [`call`] (one call from end to end), [`guards`] (the
//! conditions before a call runs), `waiting` (whether its tool is called at all), `governed` (people who have to agree, what has happened in a session, agents that go in circles, kept answers of reads), `effects` (equal
//! calls of a tool that says what makes them equal), `begin` (what is written down before a call runs), `reconcile` (whether a call took effect of which nobody knows), `attempt` (one
//! try), `trying` (what is known of one), `inner` (calls that a tool makes), `messages` (the texts that a model gets),
//! `spans` (OpenTelemetry's names), [`trial`] (one call outside of a fleet), [`recalled`] (one of the audit log).

mod attempt;
mod begin;
pub mod call;
mod effects;
pub(crate) mod governed;
pub mod guards;
mod inner;
pub(crate) mod messages;
mod parking;
mod questions;
pub mod recalled;
mod reconcile;
mod spans;
pub mod trial;
mod trying;
pub mod turn;
pub(crate) mod waiting;
