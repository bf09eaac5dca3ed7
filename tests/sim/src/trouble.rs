//! The trouble of a game: drawn from its seed before it begins, so that a part of it can be left out and the rest stays
//! as it was.

mod aim;
mod sealers;
mod theme;

use rand::Rng;
use rand::rngs::StdRng;

pub(crate) use aim::{Ambush, At, Odd, POISON, STRANGERS, Then, aim};
pub(crate) use sealers::at_sealers;
pub(crate) use theme::theme;

use crate::settings::Settings;

/// Something that goes wrong, and when, µs after the start.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) at_us: i64,
    pub(crate) kind: Kind,
}

/// Kinds of trouble. A process is named by its number: schedulers first, then workers, then who uses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A process dies after so many polls of its tasks, and another starts in its place.
    Kill { process: usize, polls: u32, back_us: i64 },
    /// A process is stopped and goes on later, and does not know.
    Stop { process: usize, for_us: i64 },
    /// A process is asked to end, as by SIGTERM, and another starts in its place when it has.
    Drain { process: usize },
    /// The connections of a process break, in the middle of what is under way.
    Cut { process: usize },
    /// Nothing between a process and Redis gets through for a while.
    Hold { process: usize, for_us: i64 },
    /// Everything takes its time.
    Slow { for_us: i64, most_us: i64 },
    /// Bytes of connections that were given up arrive up to so much later.
    Late { late_us: i64 },
    /// Redis answers nobody for a while.
    Freeze { for_us: i64 },
    /// Redis dies, is away, and comes back without its last writes.
    Restart { down_us: i64, lost_us: i64 },
    /// The clock of Redis' machine steps.
    RedisClock { by_us: i64 },
    /// The clock of a process' machine steps.
    Clock { process: usize, by_us: i64 },
    /// A process takes over another configuration.
    Reload { process: usize, version: usize },
    /// A producer writes what is no turn, no task, no entry of ours.
    Malformed { what: usize },
    /// A hand removes a key, a group or the consumers of a group in one shard.
    Remove { what: usize, shard: u32 },
    /// A hand removes the queue of the runtimes outside.
    RemoveOutside { part: Removed, tenant: usize },
    /// Redis may use so much more memory than it does now; none: as much as it wants.
    Memory { room: Option<u64> },
    /// Redis may use so much of what it uses now, in percent.
    Famine { percent: u64 },
    /// Somebody is struck when it has just done a certain thing.
    Ambush(Ambush),
    /// A stranger writes something odd.
    Odd(Odd),
    /// A producer uses an id again, for something else.
    Forge { which: usize },
    /// A hand spoils the budgets of an agent of strangers.
    Spoil { tenant: usize, agent: usize },
    /// A scheduler starts that counts the shards otherwise.
    Stray,
}

impl Kind {
    /// The word in figures.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill",
            Self::Stop { .. } => "stop",
            Self::Drain { .. } => "drain",
            Self::Cut { .. } => "cut",
            Self::Hold { .. } => "hold",
            Self::Slow { .. } => "slow",
            Self::Late { .. } => "late_bytes",
            Self::Freeze { .. } => "redis_freeze",
            Self::Restart { lost_us: 0, .. } => "redis_restart",
            Self::Restart { .. } => "redis_lost_writes",
            Self::RedisClock { .. } => "redis_clock",
            Self::Clock { .. } => "process_clock",
            Self::Reload { .. } => "reload",
            Self::Malformed { .. } => "malformed",
            Self::Remove { .. } | Self::RemoveOutside { .. } => "remove",
            Self::Memory { .. } | Self::Famine { .. } => "memory",
            Self::Ambush(_) => "ambush",
            Self::Odd(_) => "odd",
            Self::Forge { .. } => "forge",
            Self::Spoil { .. } => "spoil",
            Self::Stray => "stray",
        }
    }
}

const SECOND: i64 = 1_000_000;

/// Draws the trouble of a game.
pub(crate) fn draw(settings: &Settings, chance: &mut StdRng) -> Vec<Trouble> {
    // Some games are quiet but for one kind of trouble, others have all at once.
    let favourite = chance.random_range(0..KINDS);
    let count = chance.random_range(0..40);
    let mut troubles: Vec<Trouble> = (0..count)
        .map(|_| {
            let number = if chance.random_bool(0.4) { favourite } else { chance.random_range(0..KINDS) };
            let at_us = chance.random_range(0..settings.span_us);
            Trouble { at_us, kind: kind(number, settings, chance) }
        })
        .collect();
    troubles.sort_by_key(|trouble| trouble.at_us);
    troubles
}

const KINDS: u32 = 17;

fn kind(number: u32, settings: &Settings, chance: &mut StdRng) -> Kind {
    let parts = settings.schedulers + settings.workers;
    let process = chance.random_range(0..parts);
    let anybody = chance.random_range(0..parts + 3);
    let lease_us = settings.store.lease_ms * 1_000;
    let a_while = |chance: &mut StdRng| match chance.random_range(0..3) {
        0 => chance.random_range(0..SECOND),
        1 => chance.random_range(0..lease_us),
        _ => chance.random_range(lease_us..3 * lease_us),
    };
    match number {
        0 | 1 => {
            let polls = [0, 1, 3, 10, 30, 100][chance.random_range(0..6)];
            Kind::Kill { process, polls: chance.random_range(0..=polls), back_us: a_while(chance) }
        }
        2 => Kind::Stop { process, for_us: a_while(chance) },
        3 => Kind::Drain { process },
        4 => Kind::Cut { process: anybody },
        5 => Kind::Hold { process: anybody, for_us: a_while(chance) },
        6 => Kind::Slow { for_us: chance.random_range(0..5 * SECOND), most_us: chance.random_range(0..2 * SECOND) },
        7 => Kind::Late { late_us: chance.random_range(0..20 * SECOND) },
        8 => Kind::Freeze { for_us: a_while(chance) },
        9 => Kind::Restart { down_us: chance.random_range(0..3 * SECOND), lost_us: 0 },
        10 => Kind::Restart {
            down_us: chance.random_range(0..3 * SECOND),
            lost_us: chance.random_range(1..3 * SECOND / 2),
        },
        11 => Kind::RedisClock { by_us: step(chance) },
        12 => Kind::Clock { process: anybody, by_us: step(chance) * 30 },
        13 => Kind::Reload { process, version: chance.random_range(0..2) },
        14 => Kind::Malformed { what: chance.random_range(0..MALFORMED.len()) },
        15 => Kind::Remove {
            what: chance.random_range(0..REMOVED.len()),
            shard: chance.random_range(0..settings.store.shards),
        },
        _ => Kind::Memory { room: if chance.random_bool(0.5) { Some(chance.random_range(0..300_000)) } else { None } },
    }
}

/// Both ways, some seconds or some minutes.
fn step(chance: &mut StdRng) -> i64 {
    let most = [SECOND, 60 * SECOND, 20 * 60 * SECOND][chance.random_range(0..3)];
    chance.random_range(-most..=most)
}

/// What producers write by mistake: the stream's name behind the shard's prefix, and the entry.
pub(crate) const MALFORMED: [(&str, &[&str]); 8] = [
    ("turns", &["turn", "no JSON"]),
    ("turns", &["turn", "{}"]),
    ("turns", &["nothing", "of ours"]),
    ("turns", &["turn", r#"{"tenant":"tenant0","agent":"agent0","turn_id":"bad-1","reply_to":"odd","calls":[]}"#]),
    (
        "turns",
        &[
            "turn",
            r#"{"tenant":"stranger","agent":"agent0","turn_id":"bad-2","reply_to":"odd","calls":[{"name":"pay"}]}"#,
        ],
    ),
    ("turns", &["turn", r#"{"tenant":"tenant0","agent":"stranger","reply_to":"odd","calls":[{"name":"pay"}]}"#]),
    ("tasks", &["task", r#"{"op":"finish","tenant":"tenant0","task_id":"none","lease":"1-1","output":1}"#]),
    ("tasks", &["task", "\u{0}\u{1}"]),
];

/// What a hand removes of a key, named by what stands behind the shard's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removed {
    /// The key itself.
    Key,
    /// Its group.
    Group,
    /// The consumers of its group, with what they hold.
    Consumers,
}

/// What may be gone, and the fleet recovers: `docs/operate/backup.md` has the same list.
pub(crate) const REMOVED: [(&str, Removed); 14] = [
    ("ready:normal", Removed::Key),
    ("ready:high", Removed::Key),
    ("ready:suspect:normal", Removed::Key),
    ("ready:normal", Removed::Group),
    ("ready:low", Removed::Group),
    ("ready:normal", Removed::Consumers),
    ("ready:urgent", Removed::Consumers),
    ("turns", Removed::Key),
    ("turns", Removed::Group),
    ("turns", Removed::Consumers),
    ("timers", Removed::Key),
    ("lane:tenant0:agent0", Removed::Key),
    ("lane:tenant1:agent1", Removed::Key),
    ("beats", Removed::Key),
];
