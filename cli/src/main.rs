//! The binary: the program as it is, without tools of anybody's own.

use std::process::ExitCode;

fn main() -> ExitCode {
    tickfleet::Program::new().main()
}
