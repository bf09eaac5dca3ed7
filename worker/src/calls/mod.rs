//! The calls of a slice, from its lease to its last result.
//!
//! Read in this order: [`turn`] (one slice from end to end), `parking` (a slice that goes on later), [`call`] (one call from end to end), [`guards`] (the
//! conditions before a call runs), `waiting` (whether its tool is called at all), `consent` (people who have to agree), `facts` (what has happened in a session lets it begin, or not), `loops` (agents that go in circles), `cache` (kept answers of reads), `effects` (equal
//! calls of a tool that says what makes them equal), `begin` (what is written down before a call runs), `reconcile` (whether a call took effect of which nobody knows), `attempt` (one
//! try), `trying` (what is known of one), `inner` (calls that a tool makes), `messages` (the texts that a model gets),
//! `spans` (OpenTelemetry's names), [`trial`] (one call outside of a fleet).

mod attempt;
mod begin;
mod cache;
pub mod call;
mod consent;
mod effects;
mod facts;
pub mod guards;
mod inner;
pub(crate) mod loops;
pub(crate) mod messages;
mod parking;
mod reconcile;
mod spans;
pub mod trial;
mod trying;
pub mod turn;
pub(crate) mod waiting;
