//! Guards of those who follow a log for others: who seals the audit log, who exports it, who tells of approvals.

use super::Guard;

/// One of a name at a time, each from where the last one has come to. No interleaving has any: tests of their own notice.
pub const FOLLOWERS: &[Guard] = &[
    (4, "two export under one name", "if is_taken(lease, follower, now) then return { 'HELD' } end", ""),
    (4, "who exported last has no lease", "take(lease, follower, now, ARGV[4])", ""),
    (
        6,
        "an exporter that stood still goes on from where it was",
        "if position ~= before then return { 'STALE', now, position } end",
        "",
    ),
    (4, "two tell of approvals", "if is_taken(lease, process, now) then return { 'HELD' } end", ""),
    (4, "who told last has no lease", "take(lease, process, now, ARGV[4])", ""),
    (
        6,
        "what was told is told again",
        "for i = first, first + count - 1 do redis.pcall('XACK', key, group, ARGV[i]) end",
        "",
    ),
    (1, "what was read and not told is forgotten", "local entries = read(key, '0', most)", "local entries = {}"),
    (
        1,
        "what happened before anybody told is not told",
        "redis.pcall('XGROUP', 'CREATE', key, group, '0')",
        "redis.pcall('XGROUP', 'CREATE', key, group, '$')",
    ),
    (14, "any number of entries is told at once", "if #entries < most then", "if true then"),
    (4, "two seal", "if is_taken(lease, ARGV[2], now) then return { 'HELD' } end", ""),
    (
        2,
        "a lease ends when Redis ends its key, so late where its clock steps back",
        "holder ~= who and (until_ms == '' or num(until_ms) > now)",
        "holder ~= who",
    ),
    (6, "two keys have one name", "if known and known ~= ARGV[7] then return { 'KEY' } end", ""),
    (6, "an entry is sealed twice", "if state ~= ARGV[4] then return { 'STALE', now, state } end", ""),
];
