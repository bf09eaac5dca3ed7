//! Trouble for whoever seals the audit log. Drawn after all other trouble, by a generator of its own.

use rand::Rng;
use rand::rngs::StdRng;

use super::{Ambush, At, Kind, SECOND, Then, Trouble};
use crate::settings::Settings;

/// A sealer that shows no sign of life for so long is followed by another, µs.
const LEASE_US: i64 = 10 * SECOND;

/// Strikes at sealers, in a game that has some: one dies or stands still between two of its steps, or is cut off, and
/// may find another in its place when it goes on.
pub(crate) fn at_sealers(troubles: &mut Vec<Trouble>, settings: &Settings, chance: &mut StdRng) {
    if settings.sealed.is_none() {
        return;
    }
    for _ in 0..chance.random_range(0..4) {
        let at_us = chance.random_range(0..settings.span_us);
        let for_us = LEASE_US + chance.random_range(0..3 * SECOND);
        let then = match chance.random_range(0..5) {
            0 | 1 => Then::Dies { back_us: chance.random_range(0..2 * SECOND) },
            2 => Then::Stops { for_us },
            3 => Then::IsHeld { for_us },
            _ => Then::IsCut,
        };
        let ambush = Ambush { at: At::Asks("seal"), then, times: chance.random_range(1..3) };
        troubles.push(Trouble { at_us, kind: Kind::Ambush(ambush) });
    }
    troubles.sort_by_key(|trouble| trouble.at_us);
}
