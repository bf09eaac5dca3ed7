-- Facts of sessions, and the calls that may change them. A fact is `<until ms> <state> <since ms> <call>`: `y` it is so, `m`
-- it may be so, `n` it was cleared. A call that is under way is `<number of its turn> <change>,<change>…`, each `S<fact> <ms>`
-- or `C<fact> <ms>`; one that is only expected has `e<since ms>` before the changes. Beside them stand the turns that wait,
-- each with the turn that it waits for.
local function facts_key(session) return P .. 'facts:' .. session end
local function entered_key(session) return P .. 'entered:' .. session end

-- A key that has just been written lasts for so long at least, ms.
local function keep_for(key, ms)
  local text = string.format('%d', ms)
  if call('PEXPIRE', key, text, 'GT') == 0 then call('PEXPIRE', key, text, 'NX') end
end

-- What is known of a fact: its state (`x`: over; `-`: never set), and since when, by which call, until when.
local function fact_of(text, now)
  local until_ms, state, since, by = string.match(text or '', '^(%d+) (%l) (%d+) (.+)$')
  if not state then return '-' end
  if num(until_ms) <= now then state = 'x' end
  return state, since, by, until_ms
end

-- Changes one fact: `S` set, `s` perhaps set, `C` cleared, `c` perhaps cleared, at `now`, for `kept` ms.
local function change_fact(session, change, fact, kept, by, now)
  local key = facts_key(session)
  local next_state = change == 'S' and 'y' or 'n'
  -- What was so before counts only where the change is not certain.
  if change == 's' or change == 'c' then
    local was_so = fact_of(call('HGET', key, fact), now) == 'y'
    if change == 'c' and not was_so then return end
    next_state = change == 's' and was_so and 'y' or 'm'
  end
  call('HSET', key, fact, string.format('%d %s %d %s', now + kept, next_state, now, by))
  -- What is over is told for an hour.
  keep_for(key, kept + 3600000)
end

-- A call is no longer under way: those that wait for one of its session look again.
local function leave_session(session, by, now)
  local key = entered_key(session)
  call('HDEL', key, by)
  for _, field in ipairs(call('HKEYS', key)) do
    local waiter = string.match(field, '^w:(.+)$')
    if waiter then
      local awaits = call('HGET', key, field)
      call('HDEL', key, field)
      if redis.pcall('HGET', turn_key(waiter), TURN.awaits) == awaits then call('ZADD', TIMERS, 'LT', now, 't:' .. waiter) end
    end
  end
end

-- A call that was under way has ended, and nobody says how: what it may have changed, it may have changed.
local function leave_unsaid(session, by, now)
  local entered = call('HGET', entered_key(session), by)
  if not entered then return end
  for change, fact, kept in string.gmatch(entered, '([SC])(%S+) (%d+)') do
    change_fact(session, string.lower(change), fact, num(kept), by, now)
  end
  leave_session(session, by, now)
end
