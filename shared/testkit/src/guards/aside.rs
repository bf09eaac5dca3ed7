//! What operators do with what was put aside, and with workers.

use super::Guard;

/// Replays and drains. No interleaving has any: tests of their own notice.
pub const ASIDE: &[Guard] = &[
    (
        7,
        "a call is replayed that somebody is done with",
        "if kind == 'call' and call('ZSCORE', HANDLED, entry) then return 'AGAIN' end",
        "",
    ),
    (
        7,
        "a letter is replayed that is not there any more",
        "if not call('XRANGE', stream, entry, entry)[1] then return 'GONE' end",
        "",
    ),
    (7, "what was replayed is not done with", "done_with(kind, from)\ncall('XADD'", "call('XADD'"),
    (
        9,
        "a replay does not look whether its id is in use",
        "if known and is_waiting(tt, known) then\n  return string.sub(known, 2) == ARGV[9] and",
        "if false then\n  return string.sub(known, 2) == ARGV[9] and",
    ),
    (
        14,
        "a replay goes to an inbox that nobody reads",
        "if inbox ~= '' and unread(inbox, unread_max) >= unread_max then return 'INBOX_FULL' end",
        "",
    ),
    (
        17,
        "whoever drains a worker that is drained takes the place of who did",
        "if (call('HEXISTS', DRAINS, worker) == 1) == (what == 'drain') then return { 'NONE' } end",
        "",
    ),
    (
        14,
        "any number of workers is drained",
        "if what == 'drain' and call('HLEN', DRAINS) - (#ARGV - 6) >= num(ARGV[5]) then return { 'FULL' } end",
        "",
    ),
    (17, "a worker that leaves in order stays drained", "if drained then call('HDEL', P .. 'drains', worker) end", ""),
    (
        17,
        "a worker is not told that it is drained",
        "if worker then drained = call('HGET', P .. 'drains', worker) end",
        "",
    ),
    (
        22,
        "a worker overrules whoever has resumed it",
        "if (num(call('GET', lifted)) or -1) >= num(ARGV[6]) then return { 'LIFTED' } end",
        "",
    ),
];
