//! The binary: the standard program without custom tools.

use std::process::ExitCode;

/// Replaces the allocator of musl, which has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tickfleet::Program::new().main()
}
