//! One integration-test binary: linking twenty costs more than running them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod bfcl_run;
mod chaos;
mod client;
mod crashes;
mod delegation;
mod governance;
mod interleavings;
mod life_of_a_turn;
mod outcomes;
mod social;
mod store;
mod survival;
mod tidy;
