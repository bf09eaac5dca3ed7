//! Tests faults of processes, clocks, memory, and Redis itself.

mod clock;
mod early;
mod limits;
mod memory;
mod suspects;
