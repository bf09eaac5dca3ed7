//! Tests of a worker on a shard in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod governed;
mod life;
mod shard;
