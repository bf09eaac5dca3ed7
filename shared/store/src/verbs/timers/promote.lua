#!lua
-- promote: a turn's timer is due: a parked retry goes back to its queue, what has expired or was cancelled is
-- ended, an ending whose scheduler died is given out again, an external task whose runtime went silent is offered anew.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 ending lease ms · 3 crashes_max · 4 count, then per timer:
--       tenant:turn
-- reply {OK, now, per timer: PROMOTED · LATER · LAPSED (an external task's runtime lost its lease: it is offered anew) ·
--       GONE · RESTORED (its slice was on no queue and with nobody: it is dispatched anew from its record) ·
--       ASIDE <why> (it cannot be read, and is no longer looked at) · {an ending, see lease_ending}}
-- effect XADD ready, HSET turn, ZADD timers, ZREM delayed; XADD dead
local now, _, tight = clock(ARGV[1])
local slices = room(tight)
epoch(now)
local ending_lease, crashes_max = num(ARGV[2]), num(ARGV[3])

local function later(tt, due)
  call('ZADD', TIMERS, due, 't:' .. tt)
  return 'LATER'
end

-- Where the slice of a fence is: with a holder, waiting to be read, or gone (its stream, its entry, its group or its
-- consumer was deleted, or Redis lost them).
local function whereabouts(queue, fence)
  if not string.match(fence, '^%d+%-%d+$') then return 'gone' end
  if pending(queue, fence) then return 'held' end
  local group = group_of(queue)
  if group and not after(fence, group['last-delivered-id']) then return 'gone' end
  return redis.pcall('XRANGE', queue, fence, fence)[1] and 'waiting' or 'gone'
end

-- Rule 21: a slice that is nowhere is dispatched anew from its record. Whoever held it, and lives, gets a lease to end
-- it under its fence, which is in force until then; what it had begun stays begun, and counts as a crash.
local function restore(tt, key, rec, tenant)
  local m = call('HMGET', key, 'lo', 'st', 'b', 'cr', 'm')
  local since = m[1] and string.match(m[1], '^(%d+) ' .. string.gsub(rec.f, '%-', '%%-') .. '$')
  if not since then
    call('HSET', key, 'lo', now .. ' ' .. rec.f)
    return later(tt, math.min(now + ending_lease, rec.dl))
  elseif num(since) + ending_lease > now then
    return later(tt, math.min(num(since) + ending_lease, rec.dl))
  end
  -- Memory is short: what is out comes first.
  if slices and slices <= 0 then return later(tt, math.min(rec.dl, now + 1000)) end
  slices = slices and slices - 1
  local body = body_of_record(key, rec.dn, rec.ad)
  local crashes = whole(m[4]) or 0
  local begun = m[3] and num(string.match(m[3], '^%d+')) or -1
  if m[2] == rec.f or begun >= rec.dn then
    crashes = crashes + 1
    call('HSET', key, 'cr', crashes, 'hx', '1')
  end
  -- Whoever reads the old entry after all, of a stream that came back, is stale.
  if crashes >= crashes_max or not body then
    local t = tenant_of(tenant)
    t.out = t.out - 1
    return lease_ending(tt, key, rec, 'internal', rec.ad, crashes, now, ending_lease, body)
  end
  call('HSET', key, 'f', dispatch(rec.q, tt, body.meta, body.first, crashes, body.attempt, body.calls))
  call('HDEL', key, 'lo')
  later(tt, rec.el > 0 and math.min(rec.dl, now + rec.el) or rec.dl)
  return 'RESTORED'
end

-- A slice that is out: only one that nobody has read may be taken back; else its holder ends it (rule 6).
local function out(tt, key, rec, tenant, reason, info)
  rec.q = queue_of(rec.q, rec.cr, rec.f)
  local queue = P .. rec.q
  local where = whereabouts(queue, rec.f)
  if where == 'gone' and not reason then return restore(tt, key, rec, tenant) end
  if where == 'held' or not reason then return later(tt, reason and now + ending_lease or rec.dl) end
  return end_unread(tt, key, rec, tenant_of(tenant), reason, info, now, ending_lease)
end

-- An external task's runtime must beat within its lease, or the task is offered to another, or ended where it is
-- over (`reason`): nobody else would, for reap looks after our own workers only.
local function external(tt, key, rec, tenant, reason, info)
  local queue = P .. rec.q
  local found = redis.pcall('XPENDING', queue, GROUP, rec.f, rec.f, 1)
  if found.err or not found[1] then
    if reason or whereabouts(queue, rec.f) == 'gone' then return out(tt, key, rec, tenant, reason, info) end
    return later(tt, math.min(rec.dl, now + rec.el))
  end
  local alive = math.max(now - found[1][3], rec.hb)
  if alive + rec.el > now then
    -- What is over is not prolonged by touch, so this ends.
    return later(tt, reason and alive + rec.el or math.min(rec.dl, alive + rec.el))
  end
  -- Rule 25: what it did with the task is not known, whatever ends the task now or later.
  call('HSET', key, 'b', '0:runtime')
  if reason then
    ack_and_trim(queue, { rec.f })
    local t = tenant_of(tenant)
    t.out = t.out - 1
    return lease_ending(tt, key, rec, reason, rec.n, info, now, ending_lease)
  end
  local crashes = num(call('HINCRBY', key, 'cr', 1))
  call('HSET', key, 'hx', '1')
  local body = body_of_record(key, rec.dn, rec.ad)
  ack_and_trim(queue, { rec.f })
  if crashes >= crashes_max or not body then
    local t = tenant_of(tenant)
    t.out = t.out - 1
    return lease_ending(tt, key, rec, 'internal', rec.ad, crashes, now, ending_lease)
  end
  call('HSET', key, 'f', dispatch(rec.q, tt, body.meta, body.first, crashes, body.attempt, body.calls), 'hb', now)
  later(tt, math.min(rec.dl, now + rec.el))
  return 'LAPSED'
end

-- A parked retry: its calls were admitted already, so nothing is debited.
local function back_to_queue(tt, key, rec, tenant)
  -- Memory is short: what is out comes first.
  if slices and slices <= 0 then return later(tt, math.min(rec.dl, now + 1000)) end
  slices = slices and slices - 1
  call('ZREM', P .. 'delayed', tt)
  local body = body_of_record(key, rec.dn, rec.ad)
  -- Its calls are lost: they are answered, and those that were never admitted go on.
  if not body then return lease_ending(tt, key, rec, 'internal', rec.ad, 0, now, ending_lease) end
  local fence = dispatch(rec.q, tt, body.meta, rec.dn, body.crashes, body.attempt, body.calls)
  call('HSET', key, 'f', fence)
  -- An external task is looked at again when its next lease could be over, else a silent runtime would keep it.
  call('ZADD', TIMERS, rec.el > 0 and math.min(rec.dl, now + rec.el) or rec.dl, 't:' .. tt)
  local t = tenant_of(tenant)
  t.out = t.out + 1
  return 'PROMOTED'
end

-- What the record says; false where there is none.
local function record_of(tt)
  local m = call('HMGET', turn_key(tt), 'n', 'ad', 'dn', 'f', 'dl', 'cx', 'q', 'ag', 'er', 'eu', 'ei', 'hb', 'el', 'cr')
  if not m[1] then return false end
  local rec = { n = num(m[1]), ad = num(m[2]), dn = num(m[3] or 0), f = m[4], dl = num(m[5]), cx = m[6], q = m[7],
    ag = m[8], er = m[9], eu = num(m[10] or m[1]), ei = m[11] or '', hb = num(m[12] or 0), el = num(m[13] or 0), cr = m[14] }
  if not (split(tt) and rec.n and rec.ad and rec.dn and rec.dl and rec.q and rec.ag and rec.eu and rec.hb and rec.el) then
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
  if rec.cx then reason = 'cancelled' elseif rec.dl <= now then reason, info = 'expired', rec.dl end
  if rec.f and string.sub(rec.f, 1, 2) == 's:' then
    return lease_ending(tt, key, rec, rec.er or 'internal', rec.eu, rec.ei, now, ending_lease)
  elseif rec.f then
    if rec.el > 0 then return external(tt, key, rec, tenant, reason, info) end
    return out(tt, key, rec, tenant, reason, info)
  elseif reason then
    call('ZREM', lane_key(tenant, rec.ag), turn)
    call('ZREM', P .. 'delayed', tt)
    return lease_ending(tt, key, rec, reason, rec.n, info, now, ending_lease)
  elseif rec.dn < rec.ad then
    return back_to_queue(tt, key, rec, tenant)
  end
  later(tt, rec.dl)
  -- On its lane, which has a timer of its own; where a hand has taken one of them, they are made anew.
  local lane = 'l:' .. tenant .. ':' .. rec.ag
  if call('ZSCORE', lane_key(tenant, rec.ag), turn) and call('ZSCORE', TIMERS, lane) then return 'LATER' end
  put_on_lane(tenant, rec.ag, turn, whole(call('HGET', key, 'sq')) or 0, now)
  return 'RESTORED'
end

-- Rule 18: one timer, whatever it is of. A record that cannot be read is put aside: nothing looks at it any more, and
-- it stays for people to see. What only cannot be done now is tried again.
local function fire(tt)
  local due = num(call('ZSCORE', TIMERS, 't:' .. tt) or 'inf')
  if due > now then return 'LATER' end
  local readable, m = alone(record_of, tt)
  if not readable then
    call('ZREM', TIMERS, 't:' .. tt)
    call('ZREM', P .. 'delayed', tt)
    put_aside('timers', tt, m)
    return 'ASIDE ' .. m
  end
  local done, answer = alone(promote, tt, m)
  if done then return answer end
  later(tt, now + ending_lease)
  return 'ASIDE ' .. answer
end

local replies = { 'OK', now }
for i = 1, num(ARGV[4]) do replies[i + 2] = fire(ARGV[4 + i]) end
save_tenants()
return replies
