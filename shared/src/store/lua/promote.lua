#!lua
-- promote: a turn's timer is due: a parked retry goes back to its queue, what has expired or was cancelled is
-- ended, an ending whose scheduler died is given out again, an external task whose runtime went silent is offered anew.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 ending lease ms · 3 crashes_max · 4 count, then per timer:
--       tenant:turn
-- reply {OK, now, per timer: PROMOTED · LATER · LAPSED (an external task's runtime lost its lease: it is offered anew) ·
--       GONE · {an ending, see lease_ending}}
-- effect XADD ready, HSET turn, ZADD timers, ZREM delayed
local now, _, tight = clock(ARGV[1])
local slices = room(tight)
epoch(now)
local ending_lease, crashes_max = num(ARGV[2]), num(ARGV[3])

local function later(tt, due)
  call('ZADD', TIMERS, due, 't:' .. tt)
  return 'LATER'
end

-- A slice that is out: only one that nobody has read may be taken back; else its holder ends it (rule 6).
local function out(tt, key, rec, tenant, reason, info)
  local queue = P .. rec.q
  if pending(queue, rec.f) or not reason then
    return later(tt, now + ending_lease)
  end
  local body = body_of_entry(rec.q, rec.f)
  call('XDEL', queue, rec.f)
  local t = tenant_of(tenant)
  t.out = t.out - 1
  -- Calls that were never admitted are in the record; those of the slice that is taken back may not be.
  if body and not call('HGET', key, 'm') then keep_body(key, body) end
  return lease_ending(tt, key, rec, reason, rec.n, info, now, ending_lease)
end

-- An external task's runtime must beat within its lease, or the task is offered to another, or ended where it is
-- over (`reason`): nobody else would, for reap looks after our own workers only.
local function external(tt, key, rec, tenant, reason, info)
  local queue = P .. rec.q
  local found = call('XPENDING', queue, GROUP, rec.f, rec.f, 1)
  if not found[1] then
    if reason then return out(tt, key, rec, tenant, reason, info) end
    return later(tt, math.min(rec.dl, now + rec.el))
  end
  local alive = math.max(now - found[1][3], rec.hb)
  if alive + rec.el > now then
    -- What is over is not prolonged by touch, so this ends.
    return later(tt, reason and alive + rec.el or math.min(rec.dl, alive + rec.el))
  end
  if reason then
    call('XACK', queue, GROUP, rec.f)
    local t = tenant_of(tenant)
    t.out = t.out - 1
    return lease_ending(tt, key, rec, reason, rec.n, info, now, ending_lease)
  end
  local crashes = num(call('HINCRBY', key, 'cr', 1))
  call('HSET', key, 'hx', '1')
  local body = body_of_entry(rec.q, rec.f)
  call('XACK', queue, GROUP, rec.f)
  if crashes >= crashes_max or not body then
    local t = tenant_of(tenant)
    t.out = t.out - 1
    if body then keep_body(key, body) end
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
  local m = call('HMGET', key, 'at', 'cr')
  local body = body_of_record(key, rec.dn, rec.ad)
  local fence = dispatch(rec.q, tt, body.meta, rec.dn, num(m[2] or 0), num(m[1] or 0), body.calls)
  call('HSET', key, 'f', fence)
  -- An external task is looked at again when its next lease could be over, else a silent runtime would keep it.
  call('ZADD', TIMERS, rec.el > 0 and math.min(rec.dl, now + rec.el) or rec.dl, 't:' .. tt)
  local t = tenant_of(tenant)
  t.out = t.out + 1
  return 'PROMOTED'
end

local function promote(tt)
  local name, key = 't:' .. tt, turn_key(tt)
  local due = num(call('ZSCORE', TIMERS, name) or 'inf')
  if due > now then return 'LATER' end
  local m = call('HMGET', key, 'n', 'ad', 'dn', 'f', 'dl', 'cx', 'q', 'ag', 'er', 'eu', 'ei', 'hb', 'el')
  if not m[1] then
    call('ZREM', TIMERS, name)
    call('ZREM', P .. 'delayed', tt)
    return 'GONE'
  end
  local tenant, turn = split(tt)
  local rec = { n = num(m[1]), ad = num(m[2]), dn = num(m[3] or 0), f = m[4], dl = num(m[5]), q = m[7],
    hb = num(m[12] or 0), el = num(m[13] or 0) }
  local reason, info = nil, now
  if m[6] then reason = 'cancelled' elseif rec.dl <= now then reason, info = 'expired', rec.dl end
  if rec.f and string.sub(rec.f, 1, 2) == 's:' then
    return lease_ending(tt, key, rec, m[9], num(m[10]), m[11], now, ending_lease)
  elseif rec.f then
    if rec.el > 0 then return external(tt, key, rec, tenant, reason, info) end
    return out(tt, key, rec, tenant, reason, info)
  elseif reason then
    call('ZREM', lane_key(tenant, m[8]), turn)
    call('ZREM', P .. 'delayed', tt)
    return lease_ending(tt, key, rec, reason, rec.n, info, now, ending_lease)
  elseif rec.dn < rec.ad then
    return back_to_queue(tt, key, rec, tenant)
  end
  -- On its lane, which has a timer of its own.
  return later(tt, rec.dl)
end

local replies = { 'OK', now }
for i = 1, num(ARGV[4]) do replies[i + 2] = promote(ARGV[4 + i]) end
save_tenants()
return replies
