//! Tests of the real binary. Each test has its own real Redis.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod chaos;
mod clients;
mod commands;
mod delivery;
mod faults;
mod governance;
mod guides;
mod operation;
mod support;
