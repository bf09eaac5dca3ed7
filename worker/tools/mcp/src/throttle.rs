//! Delays the listing of tools after a server announces changes: first not at all, then with growing pauses.

use std::time::Duration;

use tickfleet_model::retry::DoublingDelay;
use tokio::time::Instant;

/// The first announcements cause no pause, because a server may send several for one change.
const AT_ONCE: u32 = 3;
const PAUSES: DoublingDelay = DoublingDelay::new(Duration::from_secs(1), Duration::from_secs(300));
/// After this time without an announcement, the next listings again have no pause.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Throttle {
    announced: u32,
    quiet_at: Option<Instant>,
}

impl Throttle {
    pub(super) fn pause(&mut self, now: Instant) -> Duration {
        if self.quiet_at.is_none_or(|quiet_at| now >= quiet_at) {
            self.announced = 0;
        }
        self.announced = self.announced.saturating_add(1);
        let pause = self.announced.checked_sub(AT_ONCE + 1).map_or(Duration::ZERO, |doublings| PAUSES.after(doublings));
        self.quiet_at = Some(now + pause + QUIET);
        pause
    }

    /// True if a pause follows the next announcement.
    pub(super) fn is_noisy(&self) -> bool {
        self.announced >= AT_ONCE
    }

    /// True if the last announcement was the first one with a pause.
    pub(super) fn has_become_noisy(&self) -> bool {
        self.announced == AT_ONCE + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_back_off_for_a_noisy_server_and_reset_after_quiet() {
        let mut throttle = Throttle::default();
        let mut now = Instant::now();
        let mut warnings = 0;
        let mut pauses = Vec::new();
        for _ in 0..14 {
            let pause = throttle.pause(now);
            now += pause;
            warnings += u32::from(throttle.has_become_noisy());
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert!(throttle.is_noisy() && warnings == 1);
        now += QUIET;
        assert_eq!(throttle.pause(now), Duration::ZERO);
        assert!(!throttle.is_noisy());
    }
}
