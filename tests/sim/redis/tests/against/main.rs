//! The simulated Redis against the real one: the same commands, reply for reply.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod alone;
mod cases;
mod pair;
mod random;
mod scripts;
