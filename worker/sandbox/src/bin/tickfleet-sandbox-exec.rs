//! The launcher as a separate program for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    tickfleet_sandbox::launcher::main()
}
