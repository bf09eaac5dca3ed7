//! The escape suite: what each level promises is attacked with real processes, and what a level does not promise is shown
//! by a test of its own, `…_is_not_promised`. `make escape` runs it as root and as a normal user. A level that this machine
//! cannot hold is skipped, and said to be; that it is refused is tested then.
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
