//! Guards of places that calls give back while they wait for somebody else.

use super::Guard;

/// Places of limits that are given back and taken again. Tests of their own notice, and interleavings.
pub const PLACES: &[Guard] = &[
    (
        3,
        "a call that waits for another turn keeps its places",
        "if not has_begun and not ended then alone(give_places, tt, key, position, now) end",
        "",
    ),
    (
        3,
        "a call that waits for people keeps its places",
        "  alone(give_places, tt, key, position, now)\n  -- It is no failed try that waits.",
        "  -- It is no failed try that waits.",
    ),
    (
        1,
        "places are taken again beyond the bound",
        "local k, stop = fit(turn.places, wanted, epoch_ms, {})",
        "local k, stop = wanted, nil",
    ),
    (
        1,
        "places that were taken again are not counted",
        "local holds = turn.places and debit_counters(tt, turn.places, k, now)",
        "local holds",
    ),
    (
        1,
        "whoever takes places again debits windows once more",
        "if rec.paid then return resume(turn, rec, stops, ending, elsewhere) end",
        "",
    ),
    (
        3,
        "whoever needs a place again has no timer on its lane",
        "call('ZADD', TIMERS, 'LT', now, 'l:' .. rec.counter)",
        "",
    ),
    (
        3,
        "whoever comes back passes those who wait for a place",
        "TURN.lane_place, call('HINCRBY', META, 'seq', 1))",
        "TURN.lane_place, 0)",
    ),
    (25, "calls that end while they need places again were never admitted", "  admit_paid(key, upto)\n", ""),
];
