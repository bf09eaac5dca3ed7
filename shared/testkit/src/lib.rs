//! Tools for tests. On failure, they panic with the reason.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod clock;
mod clocks;
mod cluster;
mod leaks;
mod network;
mod redis;
mod sentinel;
mod stopped;
mod tls;

pub use self::clock::TestClock;
pub use self::clocks::{Clocks, file_of, move_clock, stop_clock};
pub use self::cluster::Cluster;
pub use self::leaks::{assert_no_leaked_keys, leaked_keys};
pub use self::network::Network;
pub use self::redis::{RedisOptions, RedisServer, connect};
pub use self::sentinel::SentinelSetup;
pub use self::stopped::until_stopped;
pub use self::tls::TlsFiles;
