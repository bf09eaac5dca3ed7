//! The binary: the program as it is, without tools of anybody's own.

use std::process::ExitCode;

/// In a static binary, in place of musl's, which has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tickfleet::Program::new().main()
}
