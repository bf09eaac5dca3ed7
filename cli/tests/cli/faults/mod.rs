//! Tests faults of processes, clocks, memory, and Redis itself.

mod clock;
mod early;
mod limits;
mod lost_second;
mod memory;
mod reaping;
mod suspects;
