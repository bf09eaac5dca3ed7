//! Replaces the launcher on systems other than Linux, and rejects every request.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::wire::{self, Report};

#[must_use]
pub const fn landlock_abi() -> i32 {
    0
}

#[must_use]
pub fn main() -> ExitCode {
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::from(2) };
    let why = "Landlock, seccomp and namespaces exist only on Linux";
    match wire::write(&mut UnixStream::from(control), &Report::Refused(why.into())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
