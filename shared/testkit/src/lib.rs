//! Tools for tests that production never sees: a Redis of their own, a look for leaked keys, a clock to turn.
//!
//! Everything here panics where a test has to fail, with a message that says why.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod clock;
mod clocks;
mod cluster;
mod leaks;
mod network;
mod redis;
mod stopped;
mod tls;
mod trio;

pub use self::clock::TestClock;
pub use self::clocks::{Clocks, file_of, move_clock};
pub use self::cluster::Cluster;
pub use self::leaks::{assert_no_leaked_keys, leaked_keys};
pub use self::network::Network;
pub use self::redis::{RedisOptions, RedisServer, connect};
pub use self::stopped::until_stopped;
pub use self::tls::TlsFiles;
pub use self::trio::Trio;
