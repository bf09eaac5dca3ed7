//! All integration tests are in one binary, because linking twenty binaries would take longer than running them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod business;
mod calls;
mod faults;
mod fleet;
mod observed;
mod suites;
mod tidy;
