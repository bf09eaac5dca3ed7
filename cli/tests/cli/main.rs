//! Tests of the real binary, each with a real Redis of its own.
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
