//! Steps the clocks of Redis servers and of processes. The clock of a process must have no effect.

use std::path::PathBuf;

use tickfleet_testkit::{file_of, move_clock};

use super::ChaosFleet;
use super::target::RedisKind;

/// Steps such as a correction of some seconds, a wrong time zone, and a wrong day.
const STEPS_MS: [i64; 6] = [-25 * HOUR_MS, -HOUR_MS, -20_000, 20_000, HOUR_MS, 25 * HOUR_MS];
/// After a step back, a node's last vote seems recent. The node then does not vote, and no replica may take over.
/// Therefore the clocks of nodes step ahead, or back by less than the time between votes.
const STEPS_OF_NODES_MS: [i64; 4] = [20_000, HOUR_MS, 5 * HOUR_MS, -2_000];
/// A clock is at most this far ahead. Records that must be kept are kept for a longer time.
const AHEAD_MS_MAX: i64 = 48 * HOUR_MS;
const HOUR_MS: i64 = 3_600_000;

impl ChaosFleet {
    pub async fn step_redis(&mut self) {
        let primary = self.target.primary().await;
        let file = file_of(self.target.server(primary));
        if let RedisKind::Cluster(_) = self.target.kind {
            let by = STEPS_OF_NODES_MS[self.dice.below(STEPS_OF_NODES_MS.len())];
            let ahead = self.ahead.entry(file.clone()).or_default();
            *ahead = (*ahead + by).clamp(-HOUR_MS, AHEAD_MS_MAX);
            move_clock(&file, *ahead);
        } else {
            self.step(file);
        }
        self.target.followed().await;
    }

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
