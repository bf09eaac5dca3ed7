//! Guards of slices that rest with their tool.

use super::Guard;

/// Slices whose tool rests. No interleaving has any: tests of their own notice.
pub const RESTS: &[Guard] = &[
    (15, "a call rests for ever", "if since and rests_max and now >= since + rests_max then return 'OVER' end", ""),
    (
        15,
        "a call that rests again has rested for no time",
        "since = num(at) == position and num(since) or nil",
        "since = nil",
    ),
    (
        25,
        "a call that rests is told as not begun",
        "call('HDEL', key, TURN.fence, TURN.started, TURN.awaits)\n  call('HSET', key, TURN.rests",
        "call('HDEL', key, TURN.fence, TURN.started, TURN.awaits, TURN.begun)\n  call('HSET', key, TURN.rests",
    ),
    (
        25,
        "what was read beside a call that rests is told as not executed",
        "if beside == '1' then call('HSET', key, TURN.lost, now .. ' ' .. fence) end",
        "",
    ),
];

/// Slices that wait for a turn or a task. No interleaving has any: tests of their own notice.
pub const WAITS: &[Guard] = &[
    (3, "the end of a turn wakes nobody", "if wakes ~= '' then wake(tenant, tt, wakes) end", ""),
    (
        3,
        "the end of any turn wakes whoever waits for another",
        "if awaits == turn_of(tenant, tt) then call('ZADD'",
        "if awaits then call('ZADD'",
    ),
    (
        3,
        "whoever begins to wait for what has ended already is not told",
        "local ended = awaits ~= '' and call('EXISTS', done_key(tenant .. ':' .. awaits)) == 1",
        "local ended = false",
    ),
];
