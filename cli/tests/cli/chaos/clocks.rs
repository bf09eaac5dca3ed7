//! Clocks that step: the one of a Redis, which a shard goes by, and those of processes, which nothing may go by.

use std::path::PathBuf;

use tickfleet_testkit::{file_of, move_clock};

use super::World;
use super::target::Kind;

/// By so much clocks step, ms: a machine that was not synchronised, a wrong time zone, a wrong day, and a moment.
const STEPS_MS: [i64; 6] = [-25 * HOUR_MS, -HOUR_MS, -20_000, 20_000, HOUR_MS, 25 * HOUR_MS];
/// Those of a cluster's nodes. One whose clock is put back does not vote again about a primary that it has voted about:
/// to it, that was just now. With one dead and one such of three, nobody takes over until it has caught up. So clocks only
/// go ahead here, but for less than votes lie apart; a shard whose primary was ahead steps back when another one leads.
const STEPS_OF_NODES_MS: [i64; 4] = [20_000, HOUR_MS, 5 * HOUR_MS, -2_000];
/// A node's clock is no further ahead than what is kept for long.
const AHEAD_MS_MAX: i64 = 48 * HOUR_MS;
const HOUR_MS: i64 = 3_600_000;

impl World {
    /// The clock of the primary steps; one that had stepped is put right, which is a step the other way.
    pub async fn step_redis(&mut self) {
        let primary = self.target.primary().await;
        let file = file_of(self.target.server(primary));
        if let Kind::Cluster(_) = self.target.kind {
            let by = STEPS_OF_NODES_MS[self.dice.below(STEPS_OF_NODES_MS.len())];
            let ahead = self.ahead.entry(file.clone()).or_default();
            *ahead = (*ahead + by).clamp(-HOUR_MS, AHEAD_MS_MAX);
            move_clock(&file, *ahead);
        } else {
            self.step(file);
        }
        self.target.followed().await;
    }

    /// The clock of a process steps, or is put right.
    pub fn step_process(&mut self) {
        let node = self.dice.below(self.nodes.len());
        self.step(self.nodes[node].clock.clone());
    }

    fn step(&mut self, file: PathBuf) {
        let by = STEPS_MS[self.dice.below(STEPS_MS.len())];
        let ahead = self.ahead.entry(file.clone()).or_default();
        *ahead = if *ahead == 0 { by } else { 0 };
        move_clock(&file, *ahead);
    }
}
