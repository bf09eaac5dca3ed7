//! Settings that all processes of the chaos run share, and a handle to control a process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tickfleet_config::ToolsFile;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::retry::RetryDelays;
use tickfleet_store::StoreOptions;

use crate::bfcl::Tool;
use crate::bfcl_course::agents;
use crate::bfcl_tools::{ToolBehavior, entered_in_ledger, registered};
use crate::fleet::Plan;

pub const LOG_VARIABLE: &str = "TICKFLEET_CHAOS_LOG";

pub fn plan(tools: &[Tool], ledger: &str) -> Plan {
    let (once, others): (Vec<_>, Vec<_>) =
        tools.iter().partition(|tool| ToolBehavior::of(&tool.name) == ToolBehavior::Once);
    Plan {
        slots: 8,
        agents: agents(),
        caps: DefaultCaps {
            tick_ms: 100,
            calls_per_tick: 10,
            max_actions_per_day: 1_000_000,
            ..DefaultCaps::default()
        },
        retry_delays: RetryDelays::new([200, 400, 800].map(Duration::from_millis).into()),
        store: StoreOptions {
            lease_ms: 1_500,
            // High, because random kills may hit the same harmless slice several times.
            crashes_max: 8,
            ..StoreOptions::default()
        },
        standard_tools: false,
        registered: others.iter().map(|tool| registered(tool, ToolBehavior::of(&tool.name))).collect(),
        declared: ToolsFile {
            tools: once.iter().map(|tool| (tool.name.clone(), entered_in_ledger(tool, ledger))).collect(),
            ..ToolsFile::default()
        },
        ..Plan::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

pub struct NodeAddresses {
    pub redis: String,
    pub ledger: String,
    pub data: String,
}

/// Dropping the handle kills the process.
pub struct Node {
    role: Role,
    arguments: [String; 5],
    binary: String,
    child: Child,
}

impl Node {
    pub fn start(binary: &str, role: Role, number: usize, surroundings: &NodeAddresses) -> Self {
        let NodeAddresses { redis, ledger, data } = surroundings;
        let name = format!("{}-{number}", role.as_str());
        let arguments = [role.as_str(), &name, redis, ledger, data].map(String::from);
        let child = spawn(binary, &arguments);
        Self { role, arguments, binary: binary.to_owned(), child }
    }

    pub const fn role(&self) -> Role {
        self.role
    }

    pub fn kill_and_restart(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "a {} ended by itself: {ended:?}", self.role.as_str());
        self.kill();
        self.child = spawn(&self.binary, &self.arguments);
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
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(binary: &str, arguments: &[String]) -> Child {
    Command::new(binary).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}
