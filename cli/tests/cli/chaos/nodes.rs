//! Starts, stops and kills the fleet's processes. Each process has its own clock.

use std::path::PathBuf;

use nix::sys::signal::Signal;

use super::{ChaosFleet, PAST_THE_LEASE, ROLES};
use crate::support::process::{Process, chosen_build};

pub struct Node {
    pub process: Process,
    /// The content of this file moves the clock, if the target supports that.
    pub clock: PathBuf,
}

impl ChaosFleet {
    pub fn start_all(&mut self) {
        for number in 0..ROLES.len() {
            let node = self.start(number);
            self.nodes.push(node);
        }
    }

    fn start(&mut self, number: usize) -> Node {
        let role = ROLES[number];
        let folder = self.folder.path();
        self.started += 1;
        let clock = self.clocks_of_processes.path().join(self.started.to_string());
        let mut variables = vec![
            ("TICKFLEET_WORKER_DRAIN", "5s".to_owned()),
            ("TICKFLEET_LOG_LEVEL", "warn,tickfleet=info".to_owned()),
        ];
        variables.extend(self.target.clocks.iter().flat_map(|clocks| clocks.variables(&clock)));
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let program = chosen_build();
        let url = self.target.url();
        let process =
            tokio::task::block_in_place(|| Process::start_build(program.as_deref(), role, folder, &url, &variables));
        Node { process, clock }
    }

    fn any(&mut self, role: &str) -> usize {
        let of: Vec<usize> = (0..ROLES.len()).filter(|node| ROLES[*node] == role).collect();
        of[self.dice.below(of.len())]
    }

    pub async fn stop_for(&mut self, role: &str) {
        let node = self.any(role);
        self.nodes[node].process.signal(Signal::SIGSTOP);
        // The pause is longer than the lease, as on an overloaded machine.
        tokio::time::sleep(PAST_THE_LEASE).await;
        self.nodes[node].process.signal(Signal::SIGCONT);
    }

    pub fn kill(&mut self, role: &str) {
        let number = self.any(role);
        self.nodes[number].process.signal(Signal::SIGKILL);
        self.nodes[number] = self.start(number);
    }

    pub fn replace(&mut self) {
        let number = self.dice.below(ROLES.len());
        let next = self.start(number);
        let last = std::mem::replace(&mut self.nodes[number], next);
        assert_eq!(tokio::task::block_in_place(|| last.process.stop()), Some(0), "a process that is told to stop");
    }
}
