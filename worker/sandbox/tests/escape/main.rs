//! The escape suite. It attacks the promises of each level with real processes. What a level does not promise is shown
//! by a test named `…_is_not_promised`. `make escape` runs the suite as root and as a normal user. Tests of a level
//! that this machine does not support print that they are skipped; other tests check that such a level is refused.
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
