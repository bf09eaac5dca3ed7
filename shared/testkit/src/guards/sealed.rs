//! Guards that show in the audit log, sealed and exported: of those who seal, of what entries say of admissions, and of what
//! is found out about calls of which nobody knew.

use super::Guard;

/// For games whose log is sealed to show.
pub const SEALED: &[Guard] = &[
    (
        6,
        "whoever seals by what Redis does not know any more leaves a gap, or seals twice",
        "if state ~= ARGV[4] then return { 'STALE', now, state } end",
        "",
    ),
    (20, "seals are trimmed before their entries", "local id = string.format('%.0f-*', now)", "local id = '*'"),
    (
        1,
        "an entry says which place its call alone had taken of the tick",
        "local tick, ends, day = a.tick_used, a.tick_end, a.day_used",
        "local tick, ends, day = k, a.tick_end, a.day_used",
    ),
    (
        3,
        "a tick lets through a call less than it may",
        "local left = policy.tick_cap - a.tick_used",
        "local left = policy.tick_cap - a.tick_used - 1",
    ),
    (
        7,
        "a call that is to be found out begins again",
        "local mark = begun == '1' and call('HGET', key, TURN.begun)",
        "local mark = false",
    ),
];

/// What limits do, and what entries say of it. Games whose log is sealed show it: each call has its reason, and its place.
pub const TOLD: &[Guard] = &[
    (
        1,
        "an entry says which place its call alone had taken of a limit",
        "name_of(c), sum, c.used, of.row.max, c.ends, c.began)",
        "name_of(c), sum, sum, of.row.max, c.ends, c.began)",
    ),
    (1, "a limit in shadow stops calls", "if c.row.reach == 'shadow' then", "if false then"),
];
