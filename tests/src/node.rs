//! A scheduler or a worker as a process that a test controls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

#[derive(Clone, Copy)]
pub enum Role {
    Scheduler,
    Worker,
}

impl Role {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
        }
    }
}

/// Dropping the handle kills the process.
pub struct Node(Child);

impl Node {
    pub fn start(binary: &str, role: Role, number: usize, redis: &str) -> Self {
        let name = format!("{}-{number}", role.as_str());
        let mut command = Command::new(binary);
        command.args([role.as_str(), &name, redis]).stdin(Stdio::piped()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn end(mut self) {
        self.kill();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
