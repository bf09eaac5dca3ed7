#!lua
-- promote: a turn's timer is due: a parked retry goes back to its queue, one that gave places of limits back stands in line for
-- them, what has expired or was cancelled is ended, an ending whose scheduler died is given out again, an external task whose runtime went silent is offered anew.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 ending lease ms · 3 crashes_max · 4 count, then per timer:
--       tenant:turn; at last, what Redis called itself when the caller connected, or ''
-- reply {OK, now, per timer: PROMOTED · QUEUES (it is on the lane of a limit) · LATER · LAPSED (an external task's runtime lost its lease: it is offered anew) ·
--       GONE · RESTORED (its slice was on no queue and with nobody: it is dispatched anew from its record) ·
--       ASIDE <why> (it cannot be read, and is no longer looked at) · {an ending, see lease_ending}}
-- effect XADD ready or ZADD lane, HSET turn, ZADD timers, ZREM delayed; XADD dead; SADD externals
local now, _, tight, meta = clock(ARGV[1], 'run_id', 'epoch_ms', 'ran_ms')
local slices = room(tight)
epoch(now, ARGV[#ARGV], meta)
local ending_lease, crashes_max = num(ARGV[2]), num(ARGV[3])

local function later(tt, due)
  call('ZADD', TIMERS, due, 't:' .. tt)
  return 'LATER'
end

-- A slice that is nowhere: whoever holds it, and lives, gets a lease to end it under its fence, which is in force until
-- then. Answers the time at which that lease ends, or false where it has ended.
local function lease_of_lost(key, rec)
  local lost = call('HGET', key, TURN.lost)
  local since = lost and string.match(lost, '^(%d+) ' .. string.gsub(rec.fence, '%-', '%%-') .. '$')
  if not since then
    call('HSET', key, TURN.lost, now .. ' ' .. rec.fence)
    since = now
  end
  local over = num(since) + ending_lease
  return over > now and over
end

-- Rule 21: it is dispatched anew from its record. What its holder had begun stays begun, and counts as a crash.
local function restore(tt, key, rec, tenant)
  local started, begun, crashed = unpack(call('HMGET', key, TURN.started, TURN.begun, TURN.crashes))
  -- Memory is short: what is out comes first.
  if slices and slices <= 0 then return later(tt, math.min(rec.deadline, now + 1000)) end
  slices = slices and slices - 1
  local body = body_of_record(key, rec.done, rec.admitted)
  local crashes = whole(crashed) or 0
  local position = begun and num(string.match(begun, '^%d+')) or -1
  if started == rec.fence or position >= rec.done then
    crashes = crashes + 1
    call('HSET', key, TURN.crashes, crashes, TURN.has_history, '1')
  end
  -- Nobody ends the old entry any more. Whoever reads it after all, of a stream that came back, is stale.
  take_off(rec.queue, rec.fence)
  if crashes >= crashes_max or not body then
    local t = tenant_of(tenant)
    t.out = t.out - 1
    return lease_ending(tt, key, rec, 'internal', rec.admitted, crashes, now, ending_lease, body)
  end
  call('HSET', key, TURN.fence, dispatch(rec.queue, tt, body.meta, body.first, crashes, body.attempt, body.calls, true,
    body.waited, body.shades))
  later(tt, rec.external_lease > 0 and math.min(rec.deadline, now + rec.external_lease) or rec.deadline)
  return 'RESTORED'
end

-- A slice that is out: only one that nobody has read may be taken back; else its holder ends it (rule 6). Of one that
-- got lost nobody knows whether it was read: its ending says so (rule 25).
local function out(tt, key, rec, tenant, reason, info)
  rec.queue = queue_of(rec.queue, rec.crashes, rec.fence)
  local queue = P .. rec.queue
  local where = whereabouts(queue, rec.fence)
  if where == 'gone' then
    local over = lease_of_lost(key, rec)
    if over then return later(tt, reason and over or math.min(over, rec.deadline)) end
    if not reason then return restore(tt, key, rec, tenant) end
  elseif where == 'held' or not reason then return later(tt, reason and now + ending_lease or rec.deadline)
  end
  return end_unread(tt, key, rec, tenant_of(tenant), reason, info, now, ending_lease)
end

-- Since when its runtime holds an external task, by shard time. Redis says how long that is by its own clock: where that
-- has stepped back since, it says no time at all. So it is asked once.
local function held_since(key, rec, idle)
  local fence, since = string.match(call('HGET', key, TURN.held_since) or '', '^(%S+) (%d+)$')
  if fence == rec.fence then return num(since) end
  call('HSET', key, TURN.held_since, rec.fence .. ' ' .. string.format('%d', now - idle))
  return now - idle
end

-- An external task's runtime must beat within its lease, or the task is offered to another, or ended where it is
-- over (`reason`): nobody else would, for reap looks after our own workers only.
local function external(tt, key, rec, tenant, reason, info)
  local queue = P .. rec.queue
  local found = redis.pcall('XPENDING', queue, GROUP, rec.fence, rec.fence, 1)
  if found.err or not found[1] then
    if reason or whereabouts(queue, rec.fence) == 'gone' then return out(tt, key, rec, tenant, reason, info) end
    return later(tt, math.min(rec.deadline, now + rec.external_lease))
  end
  local alive = math.max(held_since(key, rec, found[1][3]), rec.touched)
  if alive + rec.external_lease > now then
    -- What is over is not prolonged by touch, so this ends.
    return later(tt, reason and alive + rec.external_lease or math.min(rec.deadline, alive + rec.external_lease))
  end
  -- Rule 25: what it did with the task is not known, whatever ends the task now or later.
  call('HSET', key, TURN.begun, '0:runtime')
  if reason then
    ack_and_trim(queue, { rec.fence })
    local t = tenant_of(tenant)
    t.out = t.out - 1
    return lease_ending(tt, key, rec, reason, rec.calls, info, now, ending_lease)
  end
  local crashes = num(call('HINCRBY', key, TURN.crashes, 1))
  call('HSET', key, TURN.has_history, '1')
  local body = body_of_record(key, rec.done, rec.admitted)
  ack_and_trim(queue, { rec.fence })
  if crashes >= crashes_max or not body then
    local t = tenant_of(tenant)
    t.out = t.out - 1
    return lease_ending(tt, key, rec, 'internal', rec.admitted, crashes, now, ending_lease)
  end
  local fence = dispatch(rec.queue, tt, body.meta, body.first, crashes, body.attempt, body.calls, body.lost)
  call('HSET', key, TURN.fence, fence, TURN.touched_ms, now)
  later(tt, math.min(rec.deadline, now + rec.external_lease))
  return 'LAPSED'
end

-- A parked retry: its calls were admitted already, so nothing is debited.
local function back_to_queue(tt, key, rec, tenant)
  -- Memory is short: what is out comes first.
  if slices and slices <= 0 then return later(tt, math.min(rec.deadline, now + 1000)) end
  slices = slices and slices - 1
  call('ZREM', P .. 'delayed', tt)
  local body = body_of_record(key, rec.done, rec.admitted)
  -- Its calls are lost: they are answered, and those that were never admitted go on.
  if not body then return lease_ending(tt, key, rec, 'internal', rec.admitted, 0, now, ending_lease) end
  local fence = dispatch(rec.queue, tt, body.meta, rec.done, body.crashes, body.attempt, body.calls, body.lost,
    body.waited, body.shades)
  call('HSET', key, TURN.fence, fence)
  call('HDEL', key, TURN.awaits)
  -- An external task is looked at again when its next lease could be over, else a silent runtime would keep it.
  call('ZADD', TIMERS, rec.external_lease > 0 and math.min(rec.deadline, now + rec.external_lease) or rec.deadline, 't:' .. tt)
  local t = tenant_of(tenant)
  t.out = t.out + 1
  return 'PROMOTED'
end

-- Its call waits for nothing any more, but it gave its places back: it stands in line for them, where whoever waited when it
-- gave them comes first. Only those who know what limits allow now let it out.
local function back_in_line(tt, key, rec)
  call('ZREM', P .. 'delayed', tt)
  call('ZADD', P .. 'lane:' .. rec.counter, num(call('HGET', key, TURN.lane_place) or 0) or 0, tt)
  call('ZADD', TIMERS, 'LT', now, 'l:' .. rec.counter)
  call('HSET', key, TURN.lane, rec.counter)
  call('HDEL', key, TURN.awaits)
  return 'QUEUES'
end

-- What the record says; false where there is none.
local function record_of(tt)
  local calls, admitted, done, fence, deadline, cancelled, queue, agent, end_reason, end_upto, end_info, touched, lease,
    crashes, lane, paid = unpack(call('HMGET', turn_key(tt), TURN.calls, TURN.admitted, TURN.done, TURN.fence, TURN.deadline_ms,
    TURN.cancelled, TURN.queue, TURN.agent, TURN.end_reason, TURN.end_upto, TURN.end_info, TURN.touched_ms,
    TURN.external_lease_ms, TURN.crashes, TURN.lane, TURN.paid))
  if not calls then return false end
  local rec = {
    calls = whole(calls), admitted = whole(admitted), done = whole(done or '0'), fence = fence, deadline = sound(deadline),
    cancelled = cancelled, queue = queue, agent = agent, end_reason = end_reason, end_upto = whole(end_upto or calls),
    end_info = end_info or '', touched = sound(touched or '0'), external_lease = sound(lease or '0'), crashes = crashes,
    lane = lane,
  }
  local paid, counter = paid_of(paid)
  if paid and rec.done and paid > rec.done then rec.counter = counter end
  if not (split(tt) and rec.calls and rec.admitted and rec.done and rec.deadline and rec.queue and rec.agent
    and rec.end_upto and rec.touched and rec.external_lease) then
    error('its record cannot be read', 0)
  end
  return rec
end

local function promote(tt, rec)
  local name, key = 't:' .. tt, turn_key(tt)
  if not rec then
    call('ZREM', TIMERS, name)
    call('ZREM', P .. 'delayed', tt)
    return 'GONE'
  end
  local tenant, turn = split(tt)
  local reason, info = nil, now
  if rec.cancelled then reason = 'cancelled' elseif rec.deadline <= now then reason, info = 'expired', rec.deadline end
  if rec.fence and string.sub(rec.fence, 1, 2) == 's:' then
    return lease_ending(tt, key, rec, rec.end_reason or 'internal', rec.end_upto, rec.end_info, now, ending_lease)
  elseif rec.fence then
    if rec.external_lease > 0 then return external(tt, key, rec, tenant, reason, info) end
    return out(tt, key, rec, tenant, reason, info)
  elseif reason then
    call('ZREM', lane_key(tenant, rec.agent), turn)
    if rec.lane then call('ZREM', P .. 'lane:' .. rec.lane, tt) end
    call('ZREM', P .. 'delayed', tt)
    return lease_ending(tt, key, rec, reason, rec.calls, info, now, ending_lease)
  elseif rec.done < rec.admitted then
    return back_to_queue(tt, key, rec, tenant)
  end
  later(tt, rec.deadline)
  -- On its lane, or soon; that has a timer of its own; where a hand has taken one of them, they are made anew.
  local lane, member = rec.lane or tenant .. ':' .. rec.agent, rec.lane and tt or turn
  if call('ZSCORE', P .. 'lane:' .. lane, member) and call('ZSCORE', TIMERS, 'l:' .. lane) then return 'LATER' end
  if rec.counter then return back_in_line(tt, key, rec) end
  call('HDEL', key, TURN.lane)
  put_on_lane(tenant, rec.agent, turn, whole(call('HGET', key, TURN.lane_place)) or 0, now)
  return 'RESTORED'
end

-- Rule 18: one timer, whatever it is of. A record that cannot be read is put aside: nothing looks at it any more, and
-- it stays for people to see. What only cannot be done now is tried again.
local function fire(tt)
  local due = num(call('ZSCORE', TIMERS, 't:' .. tt) or 'inf')
  if due > now then return 'LATER' end
  local readable, rec = alone(record_of, tt)
  if not readable then
    call('ZREM', TIMERS, 't:' .. tt)
    call('ZREM', P .. 'delayed', tt)
    put_aside('timers', tt, rec)
    return 'ASIDE ' .. rec
  end
  local done, answer = alone(promote, tt, rec)
  if done then return answer end
  later(tt, now + ending_lease)
  return 'ASIDE ' .. answer
end

local replies = { 'OK', now }
for i = 1, num(ARGV[4]) do replies[i + 2] = fire(ARGV[4 + i]) end
save_tenants()
return replies
