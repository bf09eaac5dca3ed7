#!lua flags=allow-oom
-- hand_back: a worker returns slices that it has not started, so that another leases them at once; or one that it
-- cannot read, so that another build reads it later.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per slice: tenant:turn · fence · queue · why: 'unsent' (what its holder began
--       was never sent) · 'tried' (its next call was broken off, and may run again) · 'beside' (so were calls that ran
--       beside it) · 'stray' (its holder does not know it: it never arrived, or Redis has forgotten that it ended) ·
--       or, where it cannot be read, how often it is offered again before its calls are answered from its record
-- reply per slice: OK · STALE
-- effect XADD ready under a fresh entry id, HSET turn fence, HDEL begun where it was not sent, XACK; what cannot be read: ZADD
--       timers
local now = clock(ARGV[1])
local epoch_ms = epoch(now)
local acked = {}

-- It waits, each time twice as long, for a worker that can read it; in the end promote has its calls answered.
local function unread(tt, key, fence, tries_max)
  local tries = call('HINCRBY', key, TURN.unread, 1)
  local tenant = split(tt)
  local t = tenant_of(tenant)
  t.out = t.out - 1
  if tries >= tries_max then
    local calls, admitted, done = unpack(call('HMGET', key, TURN.calls, TURN.admitted, TURN.done))
    local rec = { calls = num(calls), admitted = num(admitted), done = num(done or 0) }
    lease_ending(tt, key, rec, 'internal', rec.admitted, 0, now, 0)
  else
    call('HDEL', key, TURN.fence)
    call('HSET', key, TURN.parked_fence, fence)
    call('ZADD', P .. 'delayed', now, tt)
    local due = math.min(now + 1000 * 2 ^ (tries - 1), num(call('HGET', key, TURN.deadline_ms)))
    call('ZADD', TIMERS, due, 't:' .. tt)
  end
  return 'OK'
end

-- What was begun and never sent is not begun. What an earlier holder began stays so: whoever takes the slice next must
-- ask whether it took effect, as after a crash.
local function unbegin(key, begun, fence, done, body, unsent)
  local position, by = string.match(begun, '^(%d+):([^.]*)')
  if not position or num(position) < done then return end
  if unsent and by == fence then
    call('HDEL', key, TURN.begun)
  elseif body.crashes == 0 then
    body.crashes = 1
    call('HSET', key, TURN.crashes, 1, TURN.has_history, '1')
  end
end

-- A slice that its holder does not know may have run, and its end be among the writes that Redis lost when it
-- restarted.
local function may_have_run(admitted) return epoch_ms > 0 and num(admitted or 0) <= epoch_ms end

local function hand_back(tt, fence, queue, why)
  local key = turn_key(tt)
  local in_force, done, admitted, begun, admitted_ms = unpack(call('HMGET', key, TURN.fence, TURN.done, TURN.admitted,
    TURN.begun, TURN.admitted_ms))
  if in_force ~= fence then return 'STALE' end
  if num(why) and call('HEXISTS', key, TURN.meta) == 1 then return unread(tt, key, fence, num(why)) end
  done = num(done or 0)
  local body = body_of_entry(queue, fence)
  body = body and rest_of(body, done) or body_of_record(key, done, num(admitted))
  -- Neither has its calls, which only a hand brings about: its timer ends it.
  if not body then return 'STALE' end
  if begun then unbegin(key, begun, fence, done, body, why == 'unsent') end
  if why == 'tried' then
    -- Rule 25: should it never run again, it is told that it was tried.
    body.attempt = (body.attempt or 0) + 1
    call('HSET', key, TURN.attempts, body.attempt, TURN.attempts_at, done, TURN.has_history, '1')
  end
  if why == 'beside' or why == 'stray' and may_have_run(admitted_ms) then
    body.lost = true
    call('HSET', key, TURN.lost, now .. ' ' .. fence)
  end
  call('HSET', key, TURN.fence, dispatch(queue, tt, body.meta, body.first, body.crashes, body.attempt, body.calls,
    body.lost, body.waited, body.shades))
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[2]) do
  local at = i * 4 - 1
  local tt, fence, queue = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  replies[i] = word_of(hand_back, tt, fence, queue, ARGV[at + 3])
  if replies[i] == 'OK' or is_slice_of(queue, fence, tt) then
    acked[queue] = acked[queue] or {}
    table.insert(acked[queue], fence)
  end
end
save_tenants()
for queue, entries in pairs(acked) do ack_and_trim(P .. queue, entries) end
return replies
