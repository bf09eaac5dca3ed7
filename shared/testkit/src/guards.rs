//! The guards of the scripts, one by one, and what stands there where a test switches one off. A guard that no test
//! misses is either not tested or not needed: the interleavings and the simulator show that each is missed.

mod aside;
mod followers;
mod governance;
mod places;
mod rests;
mod sealed;

pub use aside::ASIDE;
pub use followers::FOLLOWERS;
pub use governance::{APPROVALS, FACTS, KEPT, LEDGER, LEDGER_ALONE, PROMISES};
pub use places::PLACES;
pub use rests::{RESTS, WAITS};
pub use sealed::{SEALED, TOLD};

/// A rule, what is switched off, the guard, and what is there instead.
pub type Guard = (u8, &'static str, &'static str, &'static str);

/// Budgets, clock, endings.
pub const RULES_1_TO_3: &[Guard] = &[
    (
        1,
        "a tick's counter resets when the reckoned window differs from the kept one",
        "if now >= a.tick_end then",
        "if now - (now - stagger) % policy.tick + policy.tick ~= a.tick_end then",
    ),
    (
        1,
        "a day's counter resets when the policy's day differs from the kept one",
        "if now >= a.day_end then",
        "if a.day_end ~= policy.day_end then",
    ),
    (1, "an older policy decides", "if num(policy_gen or 0) > num(policy) then", "if false then"),
    (
        1,
        "day bounds that do not hold now are used",
        "if day_is_stale(policies, now) or rows_are_stale(now) then",
        "if false then",
    ),
    (
        1,
        "the tenant's day is not debited",
        "a.tick_used, a.day_used, t.day_used = a.tick_used + k, a.day_used + k, t.day_used + k",
        "a.tick_used, a.day_used = a.tick_used + k, a.day_used + k",
    ),
    (
        2,
        "shard time steps back with Redis' clock",
        "return math.max(raw + offset, last), redis_ms",
        "return raw + offset, redis_ms",
    ),
    (3, "a lane's timer is not armed", "call('ZADD', TIMERS, 'LT', due, 'l:' .. tenant .. ':' .. agent)", ""),
    (
        3,
        "a turn whose slice has ended does not go back on its lane",
        "put_on_lane(item.tenant, agent, turn_of(item.tenant, item.tt), lane_place, math.max(tick_end, now))",
        "",
    ),
];

/// Fences and streams.
pub const RULES_4_TO_6: &[Guard] = &[
    (4, "anybody may settle", "return in_force == fence and not ended[tt]", "return in_force"),
    (4, "anybody may park a slice", "if in_force ~= fence then\n    if is", "if not in_force then\n    if is"),
    (
        4,
        "anybody may begin a call",
        "if in_force ~= fence then return 'STALE' end",
        "if not in_force then return 'STALE' end",
    ),
    (
        4,
        "whoever once read an inbound entry may admit it",
        "if not (held[entry] or is_open(stream, entry)) then return 'DUPLICATE' end",
        "",
    ),
    (
        5,
        "a stream with nothing pending is trimmed to its newest entry",
        "call('XTRIM', stream, 'MINID', ms .. '-' .. string.format('%.0f', num(seq) + 1))",
        "call('XTRIM', stream, 'MAXLEN', 0)",
    ),
    (
        6,
        "a slice that a worker holds is ended by somebody else",
        "if where == 'held' or not reason then",
        "if not reason then",
    ),
];

/// Side effects and restarts.
pub const RULES_7_AND_8: &[Guard] = &[
    (
        7,
        "a call that another has begun is begun again",
        "if other and (other == position or nonce ~= '?' and other > position) then return early and 'HOLD' or 'UNKNOWN' end",
        "",
    ),
    (7, "one's own begin cannot be repeated", "if nonce ~= '' and begun == mine then", "if false then"),
    (
        7,
        "a parked call keeps the begin of its last try",
        "call('HDEL', key, TURN.fence, TURN.begun, TURN.started, TURN.awaits)\n  call('HSET', key, TURN.attempts",
        "call('HDEL', key, TURN.fence, TURN.started, TURN.awaits)\n  call('HSET', key, TURN.attempts",
    ),
    (
        7,
        "an ending denies a call that was begun",
        "begun = position and num(position) >= rec.done and begun or ''",
        "begun = ''",
    ),
    (
        8,
        "calls are admitted in a window that began before a restart",
        "if a.tick_begin < epoch_ms then return 0 end",
        "",
    ),
    (8, "calls are begun right after a restart", "if early then return 'HOLD' end", ""),
    (
        8,
        "workers are reaped right after a restart",
        "hold = math.max(hold, epoch_ms > 0 and epoch_ms + lease or 0)",
        "",
    ),
];

/// Ids, batches, the dead. (Rule 13 is in `targeted`: it needs a full memory.)
pub const RULES_9_TO_12: &[Guard] = &[
    (
        9,
        "an accepted id hears QUEUE_FULL",
        "local known = id ~= '' and call('GET'",
        "local known = id ~= '' and length < turns_max and call('GET'",
    ),
    (
        9,
        "an id that waits has a TTL",
        "call('SET', id_key(tenant .. ':' .. id), 'q' .. digest)",
        "call('SET', id_key(tenant .. ':' .. id), 'q' .. digest, 'PX', 3600000)",
    ),
    (9, "an id that has ended has no TTL", "or 'e', 2), 'PX', dedupe)", "or 'e', 2))"),
    (
        9,
        "an id whose turn was refused is not free again",
        "if is_read and id == 'q' .. ARGV[at + 7] then",
        "if false then",
    ),
    (
        9,
        "an id is freed by a refused turn of other content",
        "if is_read and id == 'q' .. ARGV[at + 7] then",
        "if true then",
    ),
    (9, "an id of what could not be read waits for ever", "call('PEXPIRE', id_key(name), dedupe, 'NX')", ""),
    (9, "an id stands for any content", "if string.sub(id, 2) ~= digest then return 'CONFLICT' end", ""),
    (10, "processes disagree about the number of shards", "if shards and shards ~= ARGV[3] then", "if false then"),
    (
        11,
        "a batch is written before all of it is read",
        "for i = 1, count do words[i], notes[i] = plan(i) end",
        "for i = 1, count do\n  words[i], notes[i] = plan(i)\n  \
         if admitted[i] then call('HSET', P .. 'turn:' .. ARGV[places[i] + 3], TURN.calls, 1) end\nend",
    ),
    (12, "the living are reaped", "if beat <= now then", "if true then"),
    (12, "slices that were not started count a crash", "if crashes == 0 or started == entry then", "if true then"),
    (
        12,
        "reaping goes on although all were away",
        "if not reap_seen or now - num(reap_seen) > lease / 2 then",
        "if false then",
    ),
    (
        12,
        "a slice is never quarantined",
        "if crashes >= crashes_max or not body then\n    local tenant = split(tt)",
        "if not body then\n    local tenant = split(tt)",
    ),
    (
        12,
        "an inbound entry that kills its readers is never dead",
        "if crashes >= crashes_max then\n    call('XADD'",
        "if false then\n    call('XADD'",
    ),
];

/// What drains, and by which clock is trimmed.
pub const RULES_13_AND_20: &[Guard] = &[
    (13, "what drains is refused when memory is full", "#!lua flags=allow-oom\n", "#!lua\n"),
    (
        19,
        "a backlog that fills the memory is not admitted",
        "#!lua flags=allow-oom\nlocal AT_BRIM = true",
        "#!lua\nlocal AT_BRIM = true",
    ),
    (20, "replies are trimmed by the shard's clock", "math.max(redis_ms - retain, 0)", "math.max(now - retain, 0)"),
];

/// Bounds and deadlines.
pub const RULES_14_TO_16: &[Guard] = &[
    (
        14,
        "replies are not numbered",
        "local number = string.format('%d', box.seq + 1)",
        "local number = string.format('%d', box.seq)",
    ),
    (
        14,
        "turns come in for an inbox that nobody reads",
        "if unread(name, inbox_max) >= inbox_max then",
        "if false then",
    ),
    (14, "there is no bound on a tenant's inboxes", "and 'new' or 'too_many_inboxes'", "and 'new' or 'new'"),
    (
        23,
        "one tenant's inboxes use up another's bound",
        "local key = P .. 'inboxes:' .. tenant\n  if call('ZCARD', key) < max",
        "local key = P .. 'inboxes:' .. (tenant == 'bolt' and 'acme' or tenant)\n  if call('ZCARD', key) < max",
    ),
    (
        14,
        "refusals make any number of inboxes",
        "if inbox == '' or not (has_inbox(tenant, inbox) or",
        "if inbox == '' or not (true or",
    ),
    (
        14,
        "a turn is taken in whose inbox cannot be had",
        "if not has_room_for_inbox(tenant, inboxes_max, now, retain) then return 'TOO_MANY_INBOXES' end",
        "",
    ),
    (14, "a new inbox counts from its first reply on", "if box == 'new' then claim(tenant, inbox) end", ""),
    (15, "a retry is due after the deadline", "math.min(due, deadline)", "due"),
    (15, "a turn has no timer at its deadline", "timers[t + 1], timers[t + 2] = deadline, 't:' .. tt", ""),
    (16, "a tenant has any number of turns", "if t.unfinished >= turns_max then refusal", "if false then refusal"),
    (16, "a tenant has any number of slices out", "if t.out >= ready_max then k = 0 end", ""),
];

/// What is set at run time.
pub const RULE_17: &[Guard] = &[
    (
        17,
        "a process that has just started decides by what the configuration says of a tenant",
        "if num(tenants_gen or 0) > num(tenants) then",
        "if false then",
    ),
    (
        17,
        "nobody is told that a tenant was set",
        "call('HSET', META, 'tenants_gen', gen + 1, 'tenants_set', names)",
        "call('HSET', META, 'tenants_set', names)",
    ),
];

/// Poison items, and what is missing.
pub const RULES_18_AND_21: &[Guard] = &[
    (
        18,
        "a foreign number of crashes costs more than its entry",
        "if k == INBOUND.crashes then crashes = whole(v) or 0",
        "if k == INBOUND.crashes then crashes = num(v)",
    ),
    (18, "an entry of many fields fills Lua's stack", "or k == INBOUND.given or #fields < 32)", "or true)"),
    (18, "budgets that cannot be read open their windows anew", "  if a.lost then", "  if false then"),
    (
        21,
        "a slice that is nowhere waits for its deadline",
        "if not reason then return restore(tt, key, rec, tenant) end",
        "if not reason then return later(tt, rec.deadline) end",
    ),
    (
        21,
        "a slice that is nowhere is dispatched while its holder may still end it",
        "return over > now and over",
        "return false",
    ),
    (
        21,
        "what was begun of a slice that is nowhere counts no crash",
        "if started == rec.fence or position >= rec.done then",
        "if false then",
    ),
    (
        21,
        "records of one admission do not hold their calls",
        "call_fields[c], record[at + 1], record[at + 2], at = field, field, ARGV[from + 12 + c], at + 2",
        "at = at",
    ),
    (
        21,
        "inbound entries whose reader was deleted are trimmed away",
        "if group and (beyond <= 0 or beyond <= 64 and #call('XRANGE', stream, from, '+', 'COUNT', beyond) == beyond) then",
        "if group then",
    ),
    (
        21,
        "an ended inbound entry stays where an older one is held",
        "    call('XDEL', stream, unpack(entries, from, math.min(from + 999, #entries)))\n  end\nend",
        "  end\nend",
    ),
    (
        21,
        "nobody takes inbound entries whose reader was deleted",
        "if is_inbound(queue) then take_lost(queue, group) end",
        "",
    ),
];

/// What comes first.
pub const RULE_22: &[Guard] = &[
    (22, "a cancel does not wait for its turn", "cancelled_early = any_early(tts, early_ms, now)", ""),
    (
        22,
        "a cancel does not wait for its task",
        "local cancelled = any_early({ tt }, early_ms, now) and why_early(tt)",
        "local cancelled = false",
    ),
    (22, "a mark outlives what it was for", "call('DEL', early_key(tt))", ""),
    (
        22,
        "a slice that nobody has read can be begun after its cancel",
        "end_unread(tt, key, rec, tenant_of(tenant), 'cancelled', now, now, 0)",
        "",
    ),
];

/// Tasks.
pub const TASKS: &[Guard] =
    &[(1, "what a task leaves of its budget goes to nobody", "if is_task(item) then give_back(item, key) end", "")];

/// Limits: what is debited, what is given back, who comes next.
pub const LIMITS: &[Guard] = &[
    (
        1,
        "one counter of a call is debited, and the others are not",
        "for i = from + 1, debits[from], 2 do\n    local c, amounts, sum",
        "for i = from + 1, from + 1, 2 do\n    local c, amounts, sum",
    ),
    (
        1,
        "one counter of a whole turn is debited, and the others are not",
        "for i = from + 1, upto, 2 do\n    local c, amount",
        "for i = from + 1, from + 1, 2 do\n    local c, amount",
    ),
    (1, "a whole turn does not ask for room", "or c.used + debits[i + 1] * n > row.max", ""),
    (3, "a whole turn asks for nobody who waits", "if c.first or c.shared or row.held", "if c.shared or row.held"),
    (
        1,
        "a counter's window begins anew before it has ended",
        "if odd or now >= c.ends then",
        "if odd or now >= c.ends - 400 then",
    ),
    (
        8,
        "calls are admitted in a short window that began before a restart",
        "if c.row.length and c.row.length <= LOST_MS and c.began < epoch_ms then return 0 end",
        "",
    ),
    (
        8,
        "places are given right after a restart",
        "if epoch_ms > 0 and now < epoch_ms + lease then c.used = math.max(c.used, c.row.max) end",
        "",
    ),
    (3, "a slice that has ended keeps its places", "free_places(item.tt, key, holds, now)", ""),
    (
        3,
        "an ending keeps its places",
        "unpack(call('HMGET', key, TURN.holds, TURN.approval, TURN.end_reason, TURN.end_ms))",
        "false, unpack(call('HMGET', key, TURN.approval, TURN.end_reason, TURN.end_ms))",
    ),
    (3, "whoever gives a place back wakes nobody", "call('ZADD', TIMERS, 'XX', 'LT', now, 'l:' .. counter)", ""),
    (3, "the lane of a counter has no timer", "call('ZADD', TIMERS, 'LT', due, 'l:' .. name_of(c))", ""),
    (
        3,
        "whoever comes later passes those who wait for a counter",
        "if c.first and c.row.reach ~= 'shadow' and (not place or c.first < place) and name_of(c) ~= own and first ~= 0 then",
        "if false then",
    ),
];

/// Budgets of tokens and money, and what is counted of models. No interleaving asks a model: a test of their own notices.
pub const BUDGETS: &[Guard] = &[
    (1, "a repeated reservation is debited again", "if is_mine then return { 'OK', now } end", ""),
    (
        1,
        "a debit is not corrected to what was used",
        "    correct(reserved, num(input) + num(output), num(cost), now)\n",
        "",
    ),
    (1, "a debit of what was not carried out is not given back", "    correct(reserved, 0, 0, now)\n", ""),
    (6, "an answer is counted again when its step is repeated", "if counted == id then return end", ""),
];

/// All of them.
pub const ALL: &[&[Guard]] = &[
    RULES_1_TO_3,
    RULES_4_TO_6,
    RULES_7_AND_8,
    RULES_9_TO_12,
    RULES_13_AND_20,
    RULES_14_TO_16,
    RULE_17,
    RULES_18_AND_21,
    RULE_22,
    TASKS,
    LIMITS,
    FACTS,
    APPROVALS,
    LEDGER,
    KEPT,
    PROMISES,
    SEALED,
    PLACES,
    TOLD,
];

/// Those that show where calls are governed.
const OF_GOVERNANCE: [&[Guard]; 5] = [FACTS, APPROVALS, LEDGER, KEPT, PROMISES];

/// Returns true if the guard with this number is one of [`LIMITS`].
#[must_use]
pub fn is_of_limits(number: usize) -> bool {
    let end = first_of_governance();
    (end - LIMITS.len()..end).contains(&number)
}

/// Returns true if the guard with this number shows only where calls are governed: by facts, by people, by the ledger.
#[must_use]
pub fn is_of_governance(number: usize) -> bool {
    (first_of_governance()..first_of_sealing()).contains(&number)
}

/// Returns true if the guard with this number shows only in a log that is sealed, which governed calls wrote: one of [`SEALED`],
/// of [`PLACES`], or of [`TOLD`].
#[must_use]
pub fn is_of_sealing(number: usize) -> bool {
    number >= first_of_sealing()
}

fn count(groups: &[&[Guard]]) -> usize {
    groups.iter().map(|group| group.len()).sum()
}

fn first_of_sealing() -> usize {
    count(ALL) - TOLD.len() - PLACES.len() - SEALED.len()
}

fn first_of_governance() -> usize {
    first_of_sealing() - count(&OF_GOVERNANCE)
}
