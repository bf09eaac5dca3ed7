//! Trouble that is aimed: whoever has just done a certain thing is struck before it hears of it; what strangers and hands
//! write; and what was wrong before anything came in. Drawn after all other trouble, by a generator of its own.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;

use super::{Kind, SECOND, Trouble};
use crate::settings::Settings;

/// Lies in wait for somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ambush {
    pub(crate) at: At,
    pub(crate) then: Then,
    /// How often it strikes.
    pub(crate) times: u32,
}

/// What it waits for. Redis has done it, and who asked for it does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// One of a group has read a stream whose name has this in it.
    Reads(&'static str),
    /// Somebody has read an entry that kills its readers.
    Poisoned,
    /// A script was carried out.
    Asks(&'static str),
}

/// What happens to whoever did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It dies, and another starts.
    Dies { back_us: i64 },
    /// It stands still.
    Stops { for_us: i64 },
    /// Nothing reaches it, and nothing gets out.
    IsHeld { for_us: i64 },
    /// Its connections break.
    IsCut,
    /// What it holds is taken away from it, by a hand that deletes the consumer.
    IsForgotten,
    /// It dies, and a hand deletes the consumers that it was: what it held is on no queue and with nobody.
    Vanishes { back_us: i64 },
}

/// What strangers write: turns of tenants of their own, which are carried out like others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    /// A turn of one of two tenants that replies to one of many inboxes.
    ToInbox { tenant: usize, inbox: u32 },
    /// A turn that is refused, with an inbox to tell it to.
    Refused { tenant: usize, inbox: u32 },
    /// A turn whose entry has a field that says how often its readers died, and it is no number.
    Crashes,
    /// A turn whose entry has thousands of other fields.
    Fields,
    /// A message that kills whoever reads it.
    Poison,
    /// What no reader can read, under an id that its producer has given.
    Unreadable,
    /// A turn under a task whose record is none.
    OfNoTask,
}

/// The tenants of strangers. (One guard is told from another by these names.)
pub(crate) const STRANGERS: [&str; 2] = ["acme", "bolt"];
/// What the message that kills its readers has in it.
pub(crate) const POISON: &str = "poison-";

/// Adds trouble that is aimed, and leaves out some kinds of the other.
pub(crate) fn aim(troubles: &mut Vec<Trouble>, settings: &Settings, chance: &mut StdRng) {
    if chance.random_bool(0.4) {
        let kinds: BTreeSet<&str> = troubles.iter().map(|trouble| trouble.kind.word()).collect();
        let out: BTreeSet<&str> = kinds.into_iter().filter(|_| chance.random_bool(0.5)).collect();
        troubles.retain(|trouble| !out.contains(trouble.kind.word()));
    }
    let favourite = chance.random_range(0..KINDS);
    for _ in 0..chance.random_range(0..16) {
        let number = if chance.random_bool(0.5) { favourite } else { chance.random_range(0..KINDS) };
        let at_us = chance.random_range(0..settings.span_us);
        troubles.push(Trouble { at_us, kind: kind(number, settings, chance) });
    }
    // Before anything came in, the clock was two days ahead.
    if chance.random_bool(0.1) {
        troubles.extend([clock(0, 2 * 86_400 * SECOND), clock(300_000, -2 * 86_400 * SECOND)]);
    }
    troubles.sort_by_key(|trouble| trouble.at_us);
}

const fn clock(at_us: i64, by_us: i64) -> Trouble {
    Trouble { at_us, kind: Kind::RedisClock { by_us } }
}

const KINDS: u32 = 10;

fn kind(number: u32, settings: &Settings, chance: &mut StdRng) -> Kind {
    match number {
        0..5 => Kind::Ambush(ambush(settings, chance)),
        5 | 6 => Kind::Odd(odd(chance)),
        7 => Kind::Spoil { tenant: chance.random_range(0..2), agent: chance.random_range(0..settings.agents.len()) },
        8 => Kind::Forge { which: chance.random_range(0..1_000) },
        _ if chance.random_bool(0.3) => Kind::Stray,
        _ => {
            let process = chance.random_range(0..settings.schedulers + settings.workers);
            Kind::Reload { process, version: chance.random_range(0..2) }
        }
    }
}

fn ambush(settings: &Settings, chance: &mut StdRng) -> Ambush {
    let whom = [
        At::Reads(":turns"),
        At::Reads(":turns"),
        At::Reads("ready:"),
        At::Asks("begin"),
        At::Asks("begin"),
        At::Asks("settle"),
        At::Asks("retry"),
        At::Asks("admit"),
        At::Asks("promote"),
        At::Asks("release"),
        At::Asks("reap"),
        At::Asks("submit"),
    ];
    let at = whom[chance.random_range(0..whom.len())];
    let lease_us = settings.store.lease_ms * 1_000;
    let for_us = chance.random_range(0..4 * lease_us);
    let then = match chance.random_range(0..6) {
        0 | 1 => Then::Dies { back_us: for_us / 4 },
        2 => Then::Stops { for_us },
        3 => Then::IsHeld { for_us },
        4 if matches!(at, At::Reads(_)) => Then::IsForgotten,
        _ => Then::IsCut,
    };
    Ambush { at, then, times: chance.random_range(1..5) }
}

fn odd(chance: &mut StdRng) -> Odd {
    let (tenant, inbox) = (chance.random_range(0..2), chance.random_range(0..12));
    match chance.random_range(0..12) {
        0..4 => Odd::ToInbox { tenant, inbox },
        4 | 5 => Odd::Refused { tenant, inbox },
        6 => Odd::Crashes,
        7 => Odd::Fields,
        8 | 9 => Odd::Poison,
        10 => Odd::Unreadable,
        _ => Odd::OfNoTask,
    }
}
