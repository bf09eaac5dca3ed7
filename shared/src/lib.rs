//! What all parts of Tickfleet agree on.
//!
//! Read in this order: [`model`] (pure: what a turn, a call and a budget *are*), [`formats`] (how they
//! look on the wire), [`store`] (the only place that speaks Redis), [`config`] and [`ops`].

pub mod client;
pub mod config;
pub mod delegation;
pub mod force;
pub mod formats;
pub mod model;
pub mod ops;
pub mod report;
pub mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
