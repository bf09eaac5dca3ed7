//! The liveness probe of each process: whoever fails it is killed by its supervisor, and what it held counts a crash.
//! A Redis that is away, slow or full is no reason to fail it.

use super::Game;

/// Between two looks, µs.
const EVERY_US: i64 = 1_000_000;
/// A probe that fails so often in a row kills.
const FAILURES: u32 = 3;

impl Game {
    /// Asks everybody who runs whether its loops go on.
    pub(super) fn probe(&mut self) {
        let now_us = self.now_us;
        if now_us - self.probed_us < EVERY_US {
            return;
        }
        self.probed_us = now_us;
        for place in &mut self.places {
            let is_up = place.process.is_alive() && !place.process.has_ended() && place.process.stopped_us <= now_us;
            let mut stalled = Vec::new();
            if let Some(live) = place.live.as_ref().filter(|_| is_up) {
                place.process.enter(|| stalled = live.progress.stalled());
            }
            place.stalls = if stalled.is_empty() { 0 } else { place.stalls + 1 };
            if place.stalls == FAILURES {
                let loops: Vec<&str> = stalled.iter().map(|stalled| stalled.name).collect();
                let what = format!("{} lives, and its liveness probe says that it does not: {loops:?}", place.name);
                self.site.world.wrong(what);
            }
        }
    }
}
