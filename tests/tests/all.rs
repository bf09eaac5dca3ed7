//! One integration-test binary: linking twenty costs more than running them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bfcl_run;
mod chaos;
mod crashes;
mod governance;
mod life_of_a_turn;
mod store;
mod tidy;
