//! Measures the processor time of a process tree. Processes of the tree can start and end between two samples.

use std::collections::HashMap;

use super::tree::Stat;

/// The start time distinguishes processes that have the same ID one after the other.
type Identity = (i32, u64);

#[derive(Debug, Default)]
pub(super) struct CpuSample {
    pub(super) processes: HashMap<Identity, Stat>,
    /// In ticks, for processes that the launcher itself has reaped.
    pub(super) reaped: u64,
}

#[derive(Debug, Default)]
pub(super) struct CpuMeter {
    older: CpuSample,
    before: CpuSample,
    /// In ticks: the last sampled time of children that no process reaps. The kernel drops this time.
    dropped: u64,
}

impl CpuMeter {
    /// Returns the total ticks of all processes.
    pub(super) fn add(&mut self, now: CpuSample) -> u64 {
        let has_gone = |(identity, _): &(&Identity, &Stat)| !self.before.processes.contains_key(identity);
        let gone: u64 = self.older.processes.iter().filter(has_gone).map(|(_, stat)| stat.own + stat.reaped).sum();
        // If a parent was sampled just before it reaped a child, the child's time appears one sample later.
        let by_parents = now.processes.iter().filter_map(|(identity, stat)| {
            self.older.processes.get(identity).map(|older| stat.reaped.saturating_sub(older.reaped))
        });
        let reaped = by_parents.sum::<u64>() + now.reaped.saturating_sub(self.older.reaped);
        self.dropped += gone.saturating_sub(reaped);
        let alive: u64 = now.processes.values().map(|stat| stat.own + stat.reaped).sum();
        let total = alive + now.reaped + self.dropped;
        self.older = std::mem::replace(&mut self.before, now);
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(reaped: u64, processes: &[(i32, u64, u64)]) -> CpuSample {
        let stat = |own, reaped| Stat { threads: 1, is_headless: false, started: 0, own, reaped };
        CpuSample {
            reaped,
            processes: processes.iter().map(|(pid, own, reaped)| ((*pid, 0), stat(*own, *reaped))).collect(),
        }
    }

    #[test]
    fn cpu_time_counts_once_for_reaped_and_unreaped_processes() {
        let mut meter = CpuMeter::default();
        assert_eq!(meter.add(sample(0, &[(1, 5, 0), (2, 10, 0), (3, 20, 0), (4, 40, 0)])), 75);
        // Process 1 reaped process 2, and the launcher reaped process 3. Process 4 disappeared without being reaped.
        let after = [(1, 5, 10)];
        assert_eq!(meter.add(sample(20, &after)), 35);
        assert_eq!(meter.add(sample(20, &after)), 35 + 40);
        assert_eq!(meter.add(sample(20, &after)), 35 + 40);
    }

    #[test]
    fn a_child_reaped_during_a_sample_is_not_counted_twice() {
        let mut meter = CpuMeter::default();
        meter.add(sample(0, &[(1, 5, 0), (2, 10, 0)]));
        // The second sample read process 1 before process 1 reaped process 2, and no longer found process 2.
        meter.add(sample(0, &[(1, 5, 0)]));
        assert_eq!(meter.add(sample(0, &[(1, 5, 10)])), 15);
        assert_eq!(meter.add(sample(0, &[(1, 5, 10)])), 15);
    }
}
