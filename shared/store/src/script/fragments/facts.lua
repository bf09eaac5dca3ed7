-- Facts of sessions, and the calls that may change them. A fact is `<until ms> <state> <since ms> <call>`: `y` it is so, `m`
-- it may be so, `n` it was cleared; since when and by which call is of whoever said it last. One that may be so for longer
-- than it certainly is, or by what came later, says behind its `m` until when, since when and by which call it is: a build
-- that does not read that takes it for one that only may be so. A call that is under way is
-- `<number of its turn> <change>,<change>…`, each `S<fact> <ms>` or `C<fact> <ms>`; one that is only expected has
-- `e<since ms>` before the changes. Beside them stand the turns that wait, each with the turn that it waits for.
local function facts_key(session) return P .. 'facts:' .. session end
local function entered_key(session) return P .. 'entered:' .. session end

-- A key that has just been written lasts for so long at least, ms.
local function keep_for(key, ms)
  local text = string.format('%d', ms)
  if call('PEXPIRE', key, text, 'GT') == 0 then call('PEXPIRE', key, text, 'NX') end
end

-- The parts of a fact by their states, each `{ until ms, since ms, call }`.
local function parts_of(text)
  local until_ms, state, since, by, rest = string.match(text or '', '^(%d+) (%l) (%d+) (%S+)(.*)$')
  if not state then return {} end
  local parts = { [state] = { until_ms, since, by } }
  local certain, from, whose = string.match(rest, '^ (%d+) (%d+) (%S+)$')
  if certain then parts.y = { certain, from, whose } end
  return parts
end

-- What is known of a fact: its state (`x`: over; `-`: never set), and since when, by which call, until when.
local function fact_of(text, now)
  local parts = parts_of(text)
  local surely, perhaps, cleared = parts.y, parts.m, parts.n
  if surely and num(surely[1]) > now then return 'y', surely[2], surely[3], (perhaps or surely)[1] end
  if perhaps and num(perhaps[1]) > now then return 'm', perhaps[2], perhaps[3], perhaps[1] end
  -- What perhaps was so is over without a trace: nobody knows that it ever was.
  if surely then return 'x', surely[2], surely[3], surely[1] end
  if cleared then return 'n', cleared[2], cleared[3], cleared[1] end
  return '-'
end

-- Changes one fact: `S` set, `s` perhaps set, `C` cleared, `c` perhaps cleared, for `kept` ms from `now`; told later than it
-- happened, at `at_ms`. It ends earlier than was said before only where it is cleared for certain, and is certain no longer
-- for what perhaps has set it. Answers whether anything is otherwise by that.
local function change_fact(session, change, fact, kept, by, now, at_ms)
  local key = facts_key(session)
  local new = { string.format('%d', now + kept), string.format('%d', at_ms or now), by }
  -- Until the later of both ends, and told by whoever came last: by that `restate` knows what was said since.
  local function longer(one)
    if not one then return new end
    local last = num(one[2]) > num(new[2]) and one or new
    return { num(one[1]) > num(new[1]) and one[1] or new[1], last[2], last[3] }
  end
  local before = call('HGET', key, fact)
  local parts = parts_of(before)
  local surely, perhaps = parts.y, parts.m
  if surely and num(surely[1]) <= now then surely = nil end
  if perhaps and num(perhaps[1]) <= now then perhaps = nil end
  if change == 'C' then
    surely, perhaps = nil, nil
  elseif change == 'S' then
    surely = longer(surely)
  elseif change == 's' then
    perhaps = longer(perhaps)
  else
    if not surely then return false end
    new[1] = surely[1]
    surely, perhaps = nil, longer(perhaps)
  end
  if surely and perhaps and num(perhaps[1]) <= num(surely[1]) then
    -- Nothing lasts longer for it, but what came last leaves its trace.
    perhaps = num(perhaps[2]) > num(surely[2]) and { surely[1], perhaps[2], perhaps[3] } or nil
  end
  local last = perhaps or surely or new
  local text = last[1] .. ' ' .. (perhaps and 'm' or surely and 'y' or 'n') .. ' ' .. last[2] .. ' ' .. last[3]
  if surely and perhaps then text = text .. ' ' .. table.concat(surely, ' ') end
  call('HSET', key, fact, text)
  -- What is over is told for an hour.
  keep_for(key, num(last[1]) - now + 3600000)
  return text ~= before
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
