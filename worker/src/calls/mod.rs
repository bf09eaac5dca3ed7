//! The calls of a slice, from its lease to its last result. Read [`turn`] first, then [`call`] and [`guards`].

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
