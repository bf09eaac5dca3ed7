//! The guards of what governs calls: facts, people's consent, the ledger of effects, what is kept.

use super::Guard;

/// Facts of sessions: who may begin, who waits for whom, and what is known of those who are gone.
pub const FACTS: &[Guard] = &[
    (
        4,
        "a call enters its session, and takes a consent, under a slice that is another's",
        "if in_force ~= fence or num(position) < num(done or 0) then return 'STALE' end",
        "",
    ),
    (
        25,
        "a call that somebody has begun is denied for what was so before it",
        "if begun and string.match(begun, '^%d+') == position or now < marks_ms and mark_of(tt, position, digest) then return 'BEGUN' end",
        "",
    ),
    (
        8,
        "facts are believed, and claims given, right after a restart",
        "if now < hold or knows ~= '' and knows ~= run_id then return 'HOLD' end",
        "",
    ),
    (
        6,
        "a call begins beside one of a later turn that may change what it goes by",
        "(expected == '' or is_missing and num(number) < s.number)",
        "num(number) < s.number and (expected == '' or is_missing)",
    ),
    (3, "two turns that are expected wait for each other", "is_missing and num(number) < s.number", "is_missing"),
    (3, "a call that is over is waited for", "return num(found[2] or 0) <= num(position)", "return true"),
    (3, "a call that runs is taken for one that is gone", "return num(found[2] or 0) <= num(position)", "return false"),
    (3, "a call waits for its own callers", "if not depends then return turn end", "do return turn end"),
    (
        3,
        "a call in a circle of waits is taken for its own callers' work",
        "if waited ~= (done or '0') then word = 'circle' end",
        "",
    ),
    (
        3,
        "a call waits for one that waits for a place that its own callers hold",
        "lane and held[lane] and 'circle' or nil",
        "nil",
    ),
    (
        3,
        "that a call is about to wait is known when it is parked only",
        "call('HSET', turn_key(tt), TURN.awaits, turn)\n  return { 'WAITS', turn }",
        "return { 'WAITS', turn }",
    ),
    (
        3,
        "a call that is expected is not waited for",
        "(expected == '' or is_missing and num(number) < s.number)",
        "expected == ''",
    ),
    (3, "a call that is only expected stops others", "is_missing and num(number) < s.number", "num(number) < s.number"),
    (
        25,
        "a call that was let in is decided about once more",
        "for i = 1, has_begun and 0 or conditions do",
        "for i = 1, conditions do",
    ),
    (
        22,
        "turns that came before are not waited for until they are decided about",
        "if kind == 'R' and known[1] ~= 'w' and is_early(num(submitted)) then return { 'WAITS', turn } end",
        "",
    ),
    (14, "a session has any number of facts", "if not has_room(session, changes) then return 'FULL' end", ""),
    (6, "whoever only looks is under way", "if looks == '1' then return shadow end", ""),
    (
        21,
        "a call that is gone has done nothing",
        "  else\n    leave_unsaid(s.session, by, now)\n  end",
        "  else\n    call('HDEL', entered_key(s.session), by)\n  end",
    ),
    (
        6,
        "a call that waits for an equal one begins by what was so before",
        "else alone(leave_again, key, turn, position) end",
        "end",
    ),
];

/// People's consent: what it counts for, who gives it, and until when.
pub const APPROVALS: &[Guard] = &[
    (
        6,
        "a consent counts for another call",
        "if bound ~= binding or about ~= turn .. '/' .. position then return 'OTHERS' end",
        "",
    ),
    (
        15,
        "a call ends as expired while people may decide",
        "if state == 'waiting' and num(until_ms) > now then return 'WAITS' end",
        "",
    ),
    (
        15,
        "a consent counts when its time has come",
        "if state == 'approved' and num(until_ms) > now then",
        "if state == 'approved' then",
    ),
    (
        6,
        "a consent is taken by a call that something else may still stop",
        "if takes == '1' then take(",
        "if true then take(",
    ),
    (
        6,
        "a call is not told that people denied it",
        "if state == 'denied' then return { 'DENIED', by or '', why or '' } end",
        "",
    ),
    (6, "an agent agrees to its own call", "if who == agent then return { 'OWN' } end", ""),
    (
        6,
        "people take back what a call has taken",
        "if state ~= 'waiting' and state ~= 'approved' then return { 'ENDED', state } end",
        "",
    ),
    (
        15,
        "people decide when their time has come",
        "if num(until_ms) <= now then\n  end_approval(tenant, id, 'expired', now)",
        "if false then\n  end_approval(tenant, id, 'expired', now)",
    ),
    (21, "people decide about a call that is over", "or asked ~= id or cancelled or num(deadline) <= now then", "then"),
    (6, "anybody decides", "if not may_decide() then return { 'ROLE' } end", ""),
    (
        6,
        "people agree to arguments that they have not seen",
        "if (changed or '') ~= seen then return { 'CHANGED' } end",
        "",
    ),
    (
        6,
        "one person counts for two",
        "if not is_other and call('HEXISTS', record, APPROVAL.vote .. who) == 1 then return { 'AGAIN' } end",
        "",
    ),
    (6, "who has agreed to other arguments has agreed to these", "  forget_votes()\n", ""),
    (6, "one is as good as two", "if left <= 0 then\n  state", "if true then\n  state"),
    (
        3,
        "whoever waits for people is not woken",
        "  waits_no_more(tenant, id)\n  call('ZADD', TIMERS, 'XX', 'LT', now, 't:' .. tt)",
        "  waits_no_more(tenant, id)",
    ),
    (
        25,
        "people are asked about a call that somebody has begun",
        "if begun and num(string.match(begun, '^%d+')) == position then return 'DECIDED' end",
        "",
    ),
    (
        14,
        "any number of a tenant's approvals wait",
        "if approvals_full(tenant, ARGV[at + 8], now, ARGV[2], ARGV[3]) then return 'FULL' end",
        "",
    ),
    (
        6,
        "what was asked before counts still",
        "if before and before ~= id then end_approval(tenant, before, 'void', now) end",
        "",
    ),
];

/// The ledger of effects: of equal calls, one takes effect.
pub const LEDGER: &[Guard] = &[
    (
        7,
        "an equal call begins beside the one that has the claim",
        "if by and not (by == nothing and is_void(key, tenant, by)) then",
        "if false then",
    ),
    (
        8,
        "a claim is given right after a restart",
        "if now < hold or knows ~= '' and knows ~= run_id then return 'HOLD' end",
        "",
    ),
    (7, "a call concludes what another has claimed", "if held and held ~= by then return 'OTHERS' end", ""),
    (7, "what came of a call is not kept", "if word ~= 'UNDONE' then", "if false then"),
    (
        7,
        "a call that runs is taken for one that is over",
        "if is_live then return wait_for",
        "if false then return wait_for",
    ),
    (6, "a call that is over is waited for", "if is_live then return wait_for", "if true then return wait_for"),
];

/// What the ledger keeps beside that. No interleaving shows it: a test of their own notices.
pub const LEDGER_ALONE: &[Guard] = &[
    (
        4,
        "a call claims under a slice that is another's",
        "if in_force ~= fence or position < num(done or 0) then return 'STALE' end",
        "",
    ),
    (
        25,
        "a call that was begun is answered by another",
        "if mine_began or now < marks_ms and mark_of(tt, position, digest) then return 'BEGUN' end",
        "",
    ),
    (
        9,
        "an end answers equal calls for ever",
        "if by and (not parts_of(by) or (num(until_ms) or 0) <= now) then by = nil end",
        "if by and not parts_of(by) then by = nil end",
    ),
    (
        9,
        "an id that was given to other calls keeps the claim of the old ones",
        "if found.err or not found[1] or found[3] and not string.find(found[3], '\"dg\":\"' .. digest .. '\"', 1, true) then return end",
        "if found.err or not found[1] then return end",
    ),
    (7, "a claim is taken for nothing while its call runs", "  return not is_live\nend", "  return true\nend"),
    (7, "whoever knows less says how a call ended", "if ended and word ~= 'ENDED' then return 'KNOWN' end", ""),
    (8, "an open claim said again forgets who waits", "if held then return 'KNOWN' end", ""),
    (3, "whoever waits for an equal call is not woken", "  wake(by, fields)\n", ""),
];

/// Kept answers and rows of equal calls.
pub const KEPT: &[Guard] = &[
    (15, "an answer is kept beyond its time", "if not until_ms or num(until_ms) <= now then", "if not until_ms then"),
    (15, "an answer is as young as its keeping", "asked = math.min(asked, now)", "asked = now"),
    (
        1,
        "a call is refused before it came so often",
        "count >= refused_after and now + rest",
        "count >= refused_after - 1 and now + rest",
    ),
];

/// What breaks a promise of governance at once, for games of the simulator to show.
pub const PROMISES: &[Guard] = &[
    (
        6,
        "what a call's end does to facts is not done",
        "if change ~= '.' then change_fact(of, change, fact, num(kept), by, now) end",
        "",
    ),
    (6, "what nobody has decided in time counts as a consent", "if state == 'used' then return", "if true then return"),
    (15, "an answer is kept for longer than it may", "ttl = asked + ttl - now", "ttl = asked + ttl * 20 - now"),
];
