//! The launcher as a separate program. The tests of this crate use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tickfleet_sandbox::launcher::main()
}
