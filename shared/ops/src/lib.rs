//! Logs, traces, metrics, health checks and shutdown of every process, and a private Redis server for development and
//! tests.

pub mod gen_ai;
pub mod health;
pub mod metrics;
pub mod progress;
mod redis_binary;
pub mod redis_server;
mod redis_watchdog;
mod repeat_filter;
pub mod shutdown;
pub mod telemetry;
pub mod traces;
