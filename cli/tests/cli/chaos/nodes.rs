//! The processes of the fleet: which build each is of, and which clock it sees.

use std::path::PathBuf;

use nix::sys::signal::Signal;

use super::{PAST_THE_LEASE, ROLES, World};
use crate::support::process::{Process, chosen_build};

/// Of this role, whatever process that is at the moment.
pub struct Node {
    pub process: Process,
    /// What moves its clock, where clocks can be moved.
    pub clock: PathBuf,
    /// Whether it is of the build before.
    is_previous: bool,
}

/// The binary of the build before, which some of the processes are of; none: all are of today's.
#[allow(clippy::disallowed_methods, reason = "the other build is an argument of whoever has built it")]
pub fn previous() -> Option<PathBuf> {
    std::env::var_os("TICKFLEET_PREVIOUS").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl World {
    /// Starts all processes. Where there is a build before, a scheduler and a worker are of it.
    pub fn start_all(&mut self) {
        for number in 0..ROLES.len() {
            let is_first = number == 0 || ROLES[number - 1] != ROLES[number];
            let node = self.start(number, is_first && self.target.previous.is_some());
            self.nodes.push(node);
        }
    }

    fn start(&mut self, number: usize, is_previous: bool) -> Node {
        let (role, folder) = (ROLES[number], self.folder.path());
        // Each process has a file of its own: it starts with the machine's clock.
        self.started += 1;
        let clock = self.clocks_of_processes.path().join(self.started.to_string());
        let mut variables = vec![
            ("TICKFLEET_WORKER_DRAIN", "5s".to_owned()),
            ("TICKFLEET_LOG_LEVEL", "warn,tickfleet=info".to_owned()),
        ];
        variables.extend(self.target.clocks.iter().flat_map(|clocks| clocks.variables(&clock)));
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let program = if is_previous { self.target.previous.clone() } else { chosen_build() };
        let url = self.target.url();
        let process =
            tokio::task::block_in_place(|| Process::start_build(program.as_deref(), role, folder, &url, &variables));
        Node { process, clock, is_previous }
    }

    /// A process of this role.
    fn any(&mut self, role: &str) -> usize {
        let of: Vec<usize> = (0..ROLES.len()).filter(|node| ROLES[*node] == role).collect();
        of[self.dice.below(of.len())]
    }

    pub async fn stop_for(&mut self, role: &str) {
        let node = self.any(role);
        self.nodes[node].process.signal(Signal::SIGSTOP);
        // Past its lease, as a machine that is far too busy.
        tokio::time::sleep(PAST_THE_LEASE).await;
        self.nodes[node].process.signal(Signal::SIGCONT);
    }

    pub fn kill(&mut self, role: &str) {
        let number = self.any(role);
        self.nodes[number].process.signal(Signal::SIGKILL);
        self.nodes[number] = self.start(number, self.nodes[number].is_previous);
    }

    /// Another process takes the place of one, which is told to end; of the same build, or of the other one.
    pub fn replace(&mut self, by_other_build: bool) {
        let number = self.dice.below(ROLES.len());
        let next = self.start(number, self.nodes[number].is_previous != by_other_build);
        let last = std::mem::replace(&mut self.nodes[number], next);
        assert_eq!(tokio::task::block_in_place(|| last.process.stop()), Some(0), "a process that is told to stop");
    }
}
