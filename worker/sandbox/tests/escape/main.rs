//! The escape suite attacks the guarantees of each level. A test named `…_is_not_promised` shows something that a level
//! does not guarantee.
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
