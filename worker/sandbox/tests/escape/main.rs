//! The escape suite: attacks the guarantees of each level with real processes. A test named `…_is_not_promised` shows
//! something that a level does not guarantee. `make escape` runs the suite as root and as a normal user.
//!
//! If this machine does not support a level, the tests of that level print that they are skipped. Other tests check
//! that runs at such a level are rejected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test says what it skips")]

mod bombs;
mod crowd;
mod docker;
mod files;
mod kernel;
mod leftovers;
mod network;
mod refused;
mod runs;
mod secrets;
mod support;
