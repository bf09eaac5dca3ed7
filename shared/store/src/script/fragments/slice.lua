-- Slices: how calls get out, come back, and how a turn waits in between.

-- Puts a slice on its queue and answers its entry id, which is the turn's new fence (rule 4).
-- `crashes` and `attempt` are 0 at first; `calls` are the blobs from position `first` on. A slice that a holder has
-- died with goes to the suspects. `lost`: these calls were out before, and that slice got lost. `waited`: the first call
-- has begun work that went on elsewhere. `shades`: limits in whose shadow calls of it are. One table serves all:
-- making them costs more than filling them.
local entry, last_queue, last_stream, last_field = { SLICE.name, '', SLICE.meta, '' }, nil, nil, nil
local function dispatch(queue, tt, meta, first, crashes, attempt, calls, lost, waited, shades)
  if crashes > 0 then queue = suspect_queue(queue) end
  local n = 4
  entry[2], entry[4] = tt, meta
  if first > 0 then entry[n + 1], entry[n + 2], n = SLICE.first, first, n + 2 end
  if crashes > 0 then entry[n + 1], entry[n + 2], n = SLICE.crashes, crashes, n + 2 end
  if attempt > 0 then entry[n + 1], entry[n + 2], n = SLICE.attempts, attempt, n + 2 end
  if lost then entry[n + 1], entry[n + 2], n = SLICE.lost, '1', n + 2 end
  if waited then entry[n + 1], entry[n + 2], n = SLICE.waited, '1', n + 2 end
  if shades then entry[n + 1], entry[n + 2], n = SLICE.shades, shades, n + 2 end
  if queue ~= last_queue then
    -- What an external runtime reads is the task itself.
    last_queue, last_stream = queue, P .. queue
    last_field = string.sub(queue, 1, 9) == 'external:' and SLICE.task or SLICE.call
  end
  for i = 1, #calls do
    entry[n + 1], entry[n + 2], n = last_field, calls[i], n + 2
  end
  local fence = call('XADD', last_stream, '*', unpack(entry, 1, n))
  -- Ids differ within one stream only: the fence that the last holder knows must not come again from another (rule 4).
  if crashes > 0 and fence == call('HGET', turn_key(tt), TURN.fence) then
    call('XDEL', P .. queue, fence)
    fence = call('XADD', P .. queue, '*', unpack(entry, 1, n))
  end
  -- The group must be there before a runtime reads; our own streams' groups are made by whoever reads them.
  -- Whoever clears such streams away (retire) has taken one that was empty off their list: it is on it again.
  if last_field == SLICE.task and not group_of(P .. queue) then
    call('XGROUP', 'CREATE', P .. queue, GROUP, '0')
    call('SADD', P .. 'externals', queue)
  end
  return fence
end

-- The body of an entry of a queue: meta, first position, calls, crashes, attempt; nil where it is gone or cannot be
-- read. Answers also whose slice it says to be, and how many bytes it has.
local function body_of_entry(queue, entry)
  local found = call('XRANGE', P .. queue, entry, entry)
  if not found[1] then return nil, nil, 0 end
  local f, body, odd, bytes = found[1][2], { calls = {}, first = 0, crashes = 0, attempt = 0 }, false, 0
  for i = 1, #f, 2 do
    local k, v = f[i], f[i + 1]
    bytes = bytes + #k + #v
    if k == SLICE.call or k == SLICE.task then body.calls[#body.calls + 1] = v
    elseif k == SLICE.name then body.tt = string.match(v, '^[^:]+:.+$')
    elseif k == SLICE.meta then body.meta = v
    elseif k == SLICE.first then body.first, odd = whole(v), not whole(v)
    elseif k == SLICE.crashes then body.crashes = whole(v) or 0
    elseif k == SLICE.attempts then body.attempt = whole(v) or 0
    elseif k == SLICE.lost then body.lost = true
    elseif k == SLICE.waited then body.waited = true
    elseif k == SLICE.shades then body.shades = v
    end
  end
  if odd or not body.tt or not body.meta or #body.calls == 0 or #body.calls > 500 then return nil, body.tt, bytes end
  return body, body.tt, bytes
end

-- Whether an entry may be taken off its queue in the name of a turn that is not out under it any more: not where it is
-- another turn's. A Redis that has lost its last writes, and whose clock is behind, gives ids out once more, and whoever
-- holds a slice knows it by one of them.
local function is_slice_of(queue, entry, tt)
  local found = redis.pcall('XRANGE', P .. queue, entry, entry)
  local f = not found.err and found[1] and found[1][2] or {}
  for i = 1, #f, 2 do
    if f[i] == SLICE.name then return f[i + 1] == tt end
  end
  return true
end

-- The calls [first, upto) of a turn from its record; nil where they were never stored there: a record of the build
-- before this one, or one that a hand has changed.
local function body_of_record(key, first, upto)
  if first >= upto or upto - first > 500 then return nil end
  local fields = { TURN.meta, TURN.crashes, TURN.attempts, TURN.attempts_at, TURN.lost, TURN.waited, TURN.shades }
  local before = #fields
  for i = first, upto - 1 do fields[#fields + 1] = TURN.call .. i end
  local values = call('HMGET', key, unpack(fields))
  local meta, crashes, attempts, attempts_at, lost, waited, shades = unpack(values, 1, before)
  if not meta then return nil end
  local body = { meta = meta, first = first, crashes = whole(crashes) or 0, attempt = whole(attempts) or 0, calls = {},
    lost = lost, waited = waited and num(waited) == first, shades = shades or nil }
  -- The tries are those of the call that was parked last, which may have its result by now.
  if attempts_at and num(attempts_at) ~= first then body.attempt = 0 end
  for i = before + 1, #values do
    if not values[i] then return nil end
    body.calls[i - before] = values[i]
  end
  return body
end

-- Keeps a slice's body in the record, so that it outlives its entry.
local function keep_body(key, body)
  local fields = { TURN.meta, body.meta }
  for i = 1, #body.calls do
    fields[#fields + 1] = TURN.call .. (body.first + i - 1)
    fields[#fields + 1] = body.calls[i]
  end
  call('HSET', key, unpack(fields))
end

-- What is left of a body when the results before `done` are in.
local function rest_of(body, done)
  local skip = done - body.first
  if skip <= 0 then return body end
  local calls = {}
  for i = skip + 1, #body.calls do calls[#calls + 1] = body.calls[i] end
  -- The tries counted the call that was first; the one that is first now has none behind it.
  body.calls, body.first, body.attempt, body.waited = calls, done, 0, false
  return body
end

-- The budgets of one agent (`tenant:agent`): calls used in the tick, its end, calls used in the day, its end, and
-- when the tick began.
local function budget_of(name)
  local text = call('HGET', P .. 'budgets', name)
  local a = { tick_used = 0, tick_end = 0, day_used = 0, day_end = 0, tick_begin = 0 }
  -- One that a hand has changed is mended where the next call is admitted.
  if text and #text == 40 then a.tick_used, a.tick_end, a.day_used, a.day_end, a.tick_begin = struct.unpack('<ddddd', text) end
  a.tick_end = sound(a.tick_end) or 0
  return a
end

-- Puts a turn with calls left on its agent's lane, in admission order, and arms the lane's timer (rule 3).
local function put_on_lane(tenant, agent, turn, seq, due)
  call('ZADD', lane_key(tenant, agent), seq, turn)
  call('ZADD', TIMERS, 'LT', due, 'l:' .. tenant .. ':' .. agent)
end

-- What stands against parking a slice whose call at `position` is to wait: a word, or nil and what is needed of its record.
-- A slice that is another's by now is taken off its queue.
local function parkable(tt, key, fence, queue, position, acked)
  local in_force, done, deadline, cancelled, meta, parked, log = unpack(call('HMGET', key, TURN.fence, TURN.done,
    TURN.deadline_ms, TURN.cancelled, TURN.meta, TURN.parked_fence, TURN.log))
  if in_force ~= fence then
    if is_slice_of(queue, fence, tt) then
      acked[queue] = acked[queue] or {}
      table.insert(acked[queue], fence)
    end
    return parked == fence and 'ALREADY' or 'STALE'
  end
  if num(done or 0) ~= position then return 'GAP' end
  if cancelled then return 'CANCELLED' end
  -- A record of the build before this one has the calls in the entry only.
  if not meta then
    local body = body_of_entry(queue, fence)
    if not body then return 'STALE' end
    keep_body(key, body)
  end
  return nil, num(deadline), log
end

-- Parks it: nobody holds it until its timer is due, at the earlier of `due` and the deadline (rule 15).
local function park(tenant, tt, fence, queue, due, deadline, now, acked)
  call('ZADD', TIMERS, math.min(due, deadline), 't:' .. tt)
  -- For those who look at the backlog; only promote ends the wait.
  call('ZADD', P .. 'delayed', now, tt)
  local t = tenant_of(tenant)
  t.out = t.out - 1
  acked[queue] = acked[queue] or {}
  table.insert(acked[queue], fence)
end

-- Gives back the places of limits that a turn's calls held, and wakes whoever waits for one: once, for the record forgets
-- them. `holds` is what the record says (see `debit_counters`).
local function free_places(tt, key, holds, now)
  if not holds then return end
  for counter, places in string.gmatch(holds, '(%S+) (%d+)') do
    local members = {}
    for i = 1, math.min(num(places), 1000) do members[i] = tt .. '/' .. i end
    redis.pcall('ZREM', P .. 'held:' .. counter, unpack(members))
    call('ZADD', TIMERS, 'XX', 'LT', now, 'l:' .. counter)
  end
  call('HDEL', key, TURN.holds)
end

-- What a record says of calls that gave their places back: up to which position windows are debited, and a counter that they
-- had a place of; nil where there are none, or a hand has changed it.
local function paid_of(text)
  local upto, counter = string.match(text or '', '^(%d+) (%S+)$')
  return whole(upto), counter
end

-- The log of a turn with one more note of its places: given back by so many calls (G), or taken again for so many (H). Where there
-- is no room left, the last note is that they were given back, by 0: what became of them later is told by none.
local function with_places_note(log, kind, now, calls)
  log = log or ''
  local last = string.match(log, '^.*;([AGH])') or string.match(log, '^([AGH])')
  local noted_max = 1000
  -- What it says of debits is bounded by itself.
  local is_long = #log > noted_max and #string.gsub(log, ';D[^;]*', '') > noted_max
  if kind == 'G' and last == 'G' or kind == 'H' and is_long then return log end
  if is_long then calls = 0 end
  return string.format('%s;%s%d,%d', log, kind, now, calls)
end

-- A slice is parked whose next call has begun nothing, and waits for somebody else: a turn, or people. It gives back the places
-- of limits that it holds, or whoever it waits for might wait for one of them. So its calls are not admitted any more, for
-- whatever build looks at them: they stand in line again, behind those who waited by now. What has a window they have debited.
local function give_places(tt, key, position, now)
  local holds, admitted, paid, log = unpack(call('HMGET', key, TURN.holds, TURN.admitted, TURN.paid, TURN.log))
  local counter = string.match(holds or '', '^(%S+) %d')
  if not counter then return end
  local upto = math.max(num(admitted), paid_of(paid) or 0)
  free_places(tt, key, holds, now)
  call('HDEL', key, TURN.lane)
  call('HSET', key, TURN.admitted, position, TURN.paid, string.format('%d %s', upto, counter), TURN.log,
    with_places_note(log, 'G', now, upto - position), TURN.lane_place, call('HINCRBY', META, 'seq', 1))
end

-- Calls that gave their places back end without having them again: they were admitted once, and their entries say so.
local function admit_paid(key, upto)
  local admitted, paid = unpack(call('HMGET', key, TURN.admitted, TURN.paid))
  local paid_upto = paid_of(paid)
  if not paid_upto then return end
  call('HSET', key, TURN.admitted, math.max(whole(admitted) or 0, math.min(paid_upto, upto)))
  if paid_upto <= upto then call('HDEL', key, TURN.paid) end
end

-- Which calls of [from, upto) are marked as begun by somebody, of a turn with this meta: each behind a comma. Whether
-- the marks are of this very content, the digest in the meta says.
local function marked(tt, from, upto, meta)
  local digest = call('HGET', marks_key(tt), MARK.digest)
  if not digest or upto <= from or (meta and not string.find(meta, '"dg":"' .. digest .. '"', 1, true)) then return '' end
  local fields, found = {}, ''
  for i = from, upto - 1 do fields[#fields + 1] = MARK.nonce .. i end
  local marks = call('HMGET', marks_key(tt), unpack(fields))
  for i = 1, #fields do
    if marks[i] then found = found .. ',' .. (from + i - 1) end
  end
  return found
end

-- Gives the calls [done, upto) of a turn that is not out to the caller to end: the caller renders their results
-- and settles them under the new fence. If it dies, the timer gives the ending to somebody else.
-- What is known of earlier tries goes along, for rule 25: what began is never told as not run. So right after a restart
-- nothing is given out: whoever began one of these calls, and lives, has a lease to say so (rule 8).
-- reply LATER (its timer gives it out when that lease is over) · {tenant:turn, fence, reason, done, upto, info, begun,
--        tries of the first call, crashes of its slice (a slice that got lost may have had a holder), calls admitted, why
--        it was cancelled or '', meta, calls…}; begun: what the record says (`<position>:<nonce, 'runtime' or 'waiter'>`) or '',
--        and behind a comma each the positions that are marked
local function lease_ending(tt, key, rec, reason, upto, info, now, lease, body) -- rarely
  local fence = 's:' .. call('HINCRBY', META, 'endings', 1)
  local holds, asked, before, since = unpack(call('HMGET', key, TURN.holds, TURN.approval, TURN.end_reason, TURN.end_ms))
  free_places(tt, key, holds, now)
  admit_paid(key, upto)
  if asked then end_approval((split(tt)), asked, 'void', now) end
  call('HSET', key, TURN.fence, fence, TURN.end_reason, reason, TURN.end_upto, upto, TURN.end_info, info,
    TURN.end_ms, before and since or string.format('%d', now), TURN.has_history, '1')
  local spoken_ms = restarted_ms > 0 and lease > 0 and restarted_ms + lease or 0
  call('ZADD', TIMERS, now < spoken_ms and spoken_ms or now + lease, 't:' .. tt)
  if now < spoken_ms then return 'LATER' end
  body = body or body_of_record(key, rec.done, upto)
  local begun, attempts, crashes, admitted, cancelled, meta, agent, deadline, calls, attempts_at, lost, waited = unpack(
    call('HMGET', key, TURN.begun, TURN.attempts, TURN.crashes, TURN.admitted, TURN.cancelled, TURN.meta, TURN.agent,
    TURN.deadline_ms, TURN.calls, TURN.attempts_at, TURN.lost, TURN.waited))
  local known = body and body.meta or meta
  if not body then
    -- What is lost is not made up: the calls are answered all the same, by number.
    body = { calls = {}, meta = meta or string.format('{"ag":"%s","dl":%d,"dg":"","n":%d}', agent or 'unknown',
      num(deadline) or 0, num(calls) or upto) }
    for i = rec.done, upto - 1 do body.calls[i - rec.done + 1] = call('HGET', key, TURN.call .. i) or '{}' end
  end
  -- A call that somebody who is gone had begun may have taken effect: its result must not deny it.
  local position = string.match(begun or '', '^%d+')
  begun = position and num(position) >= rec.done and begun or ''
  -- One that has begun work which went on elsewhere was executed in part.
  if begun == '' and waited and num(waited) == rec.done then begun = waited .. ':waiter' end
  if now < marks_ms then begun = begun .. marked(tt, rec.done, upto, known) end
  -- The tries are those of the call that was parked last, which may have its result by now.
  local tries = (not attempts_at or num(attempts_at) == rec.done) and string.format('%d', num(attempts or 0) % 1000) or '0'
  if lost and num(crashes or 0) == 0 then crashes = '1' end
  local reply = { tt, fence, reason, tostring(rec.done), tostring(upto), tostring(info), begun, tries, crashes or '0',
    admitted or '0', reason == 'cancelled' and (rec.why or cancelled) or '', body.meta }
  for i = 1, math.min(#body.calls, upto - rec.done) do reply[#reply + 1] = body.calls[i] end
  return reply
end

-- Takes an entry off its queue that nobody will acknowledge, and what it held back that was: later entries may be the
-- last on that queue for long. The queue may be gone, or be none.
local function take_off(queue, entry)
  redis.pcall('XDEL', P .. queue, entry)
  alone(trim, P .. queue)
end

-- Where the slice of a fence is: with a holder, waiting to be read, or gone (its stream, its entry, its group or its
-- consumer was deleted, or Redis lost them).
local function whereabouts(queue, fence)
  if not string.match(fence, '^%d+%-%d+$') then return 'gone' end
  if pending(queue, fence) then return 'held' end
  local group = group_of(queue)
  -- Without its group, nobody knows whether it was read.
  if not group or not after(fence, group['last-delivered-id']) then return 'gone' end
  return redis.pcall('XRANGE', queue, fence, fence)[1] and 'waiting' or 'gone'
end

-- Ends the calls of a slice that is out and that nobody has read: takes it back first. `t` are its tenant's counters.
local function end_unread(tt, key, rec, t, reason, info, now, lease)
  local body = body_of_entry(rec.queue, rec.fence)
  -- Entry and group may be gone: the record's fence keeps anybody from going on.
  take_off(rec.queue, rec.fence)
  t.out = t.out - 1
  -- Calls that were never admitted are in the record; in one of the build before this, those of the slice may not be.
  if body and not call('HGET', key, TURN.meta) then keep_body(key, body) end
  return lease_ending(tt, key, rec, reason, rec.calls, info, now, lease)
end

-- Rule 18: puts aside what cannot be read, with the reason, so that the loop goes on and people see it. What it
-- holds stays where it is: it may be anything, and secrets do not belong among the dead.
local function put_aside(from, entry, why)
  call('XADD', P .. 'dead', 'MAXLEN', '~', 10000, '*', 'from', from, 'entry', entry, 'reason', 'unreadable',
    'raw', string.sub(why, 1, 500), 'tenant', '')
end
