//! One integration-test binary: linking twenty costs more than running them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod life_of_a_turn;
mod interleavings;
mod store;
mod tidy;
