//! When a game is played, and what a used-up day does to its turns.

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_model::DayCapAction;

use crate::trouble::{Kind, Trouble};

/// 2026-01-05T11:59:50Z, µs since the epoch.
const NOON_US: i64 = 1_767_614_390_000_000;
/// 2026-01-06T00:00:00Z, µs since the epoch.
const MIDNIGHT_US: i64 = 1_767_657_600_000_000;
/// One step of Redis' clock in so many is one of hours.
const LONG_STEPS: u32 = 10;
const HOUR_US: i64 = 3_600_000_000;

/// When a game is played.
#[derive(Debug, Clone)]
pub(crate) struct Calendar {
    /// The start of the simulated time, µs since the epoch.
    pub(crate) start_us: i64,
    /// What happens to calls beyond a day's cap.
    pub(crate) on_day_cap: DayCapAction,
}

impl Default for Calendar {
    fn default() -> Self {
        Self { start_us: NOON_US, on_day_cap: DayCapAction::Reject }
    }
}

impl Calendar {
    /// Draws the day: in some games it ends while turns come, and in some of these turns wait for the next one.
    pub(crate) fn draw(span_us: i64, chance: &mut StdRng) -> Self {
        if chance.random_bool(0.7) {
            return Self::default();
        }
        let on_day_cap = if chance.random_bool(0.6) { DayCapAction::Defer } else { DayCapAction::Reject };
        Self { start_us: MIDNIGHT_US - chance.random_range(0..span_us), on_day_cap }
    }
}

/// Makes some steps of Redis' clock long ones, of hours or a day.
pub(crate) fn lengthen(troubles: &mut [Trouble], chance: &mut StdRng) {
    for trouble in troubles {
        if let Kind::RedisClock { by_us } = &mut trouble.kind
            && chance.random_range(0..LONG_STEPS) == 0
        {
            *by_us = chance.random_range(1..26) * by_us.signum() * HOUR_US;
        }
    }
}
