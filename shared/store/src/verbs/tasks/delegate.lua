#!lua
-- delegate: writes tasks durably and offers each to its target: to the workers that run its handler, or to an
-- outside runtime. A child's budget is carved from its parent's.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant_turns_max · 3 inbox_unread_max · 4 inboxes_max per tenant · 5 reply retain ms ·
--       6 tasks of a tenant that are listed at most · 7 how long lists are kept, ms · 8 tenant_bytes_max ·
--       9 count, then per task: inbound entry or '' ·
--       tenant · task id · given ('1' or '') · digest · queue · agent · deadline ms · budget · parent task or '' ·
--       meta · call · lease of an external runtime ms (0: workers run it) · inbox or '' · the tenant's turn whose call delegates
--       it, or '' · '1' where that call waits for it
-- reply {now, per task: OK <fence> · DUPLICATE · CONFLICT · REFUSED <code> · PRESSURE (memory is short, see room: an
--       inbound task waits)}; a refused inbound task is rejected by the caller
-- A task that was cancelled before it came, or came after its deadline, is written and ended by the next promote.
-- effect XADD queue, HSET turn, ZADD timers, HINCRBY parent's budget_used; ZADD tasks, children and under; XACK of the inbound
--       entry, HDEL queued
local now, _, tight = shard_time(ARGV[1])
local slices = room(tight)
local turns_max, inbox_max, inboxes_max, reply_retain = num(ARGV[2]), num(ARGV[3]), num(ARGV[4]), num(ARGV[5])
local listed_max, listed_ms = num(ARGV[6]), ARGV[7]
local early_ms, memory_max = unpack(call('HMGET', META, 'early_ms', 'memory_max'))
local bytes_max = tenant_bytes_max(ARGV[8], memory_max)
local acked = {}

local function known(tt, given, digest)
  local id = given ~= '' and call('GET', id_key(tt))
  if id and string.sub(id, 2) ~= digest then return 'CONFLICT' end
  if id or call('EXISTS', turn_key(tt), done_key(tt)) > 0 then return 'DUPLICATE' end
end

-- Rule 14: why an inbox cannot take the task's reply. A call's task has the inbox of its turn, which was let in.
local function no_inbox(tenant, inbox, inbound)
  if inbox == '' then return nil end
  if inbound and unread(tenant .. ':' .. inbox, inbox_max) >= inbox_max then return 'inbox_full' end
  if has_inbox(tenant, inbox) or has_room_for_inbox(tenant, inboxes_max, now, reply_retain) then return nil end
  return 'too_many_inboxes'
end

-- What people list: the tenant's newest tasks, and those that were delegated from one. Ids only: what became of them,
-- their records tell. Only tasks pay for it, never a turn.
local function list(key, task)
  call('ZADD', key, now, task)
  local beyond = call('ZCARD', key) - listed_max
  if beyond > 0 then call('ZREM', key, unpack(call('ZRANGE', key, 0, math.min(beyond, 100) - 1))) end
  call('PEXPIRE', key, listed_ms)
end

local function delegate(at)
  -- The inbound entry is the fence: a scheduler that slept while reap wrote it anew must not delegate it a second time,
  -- however long ago the task has ended and its record has gone.
  if ARGV[at] ~= '' and not is_open(P .. 'tasks', ARGV[at]) then return 'DUPLICATE' end
  local tenant, tt = ARGV[at + 1], ARGV[at + 1] .. ':' .. ARGV[at + 2]
  local given, digest, queue, agent = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  local deadline, budget, parent = num(ARGV[at + 7]), num(ARGV[at + 8]), ARGV[at + 9]
  local word = known(tt, given, digest)
  if word then return word end
  local t = tenant_of(tenant)
  local bytes = #ARGV[at + 10] + #ARGV[at + 11]
  if t.unfinished >= turns_max then return 'REFUSED tenant_queue_full' end
  if t.bytes + bytes > bytes_max then return 'REFUSED tenant_queue_full' end
  local inbound, expired = ARGV[at] ~= '', deadline <= now
  -- A call is told so. What a service sent may have run already, and got lost: it ends as what is known of it says.
  if expired and not inbound then return 'REFUSED deadline_passed' end
  local inbox = ARGV[at + 13]
  local refusal = no_inbox(tenant, inbox, inbound)
  if refusal then return 'REFUSED ' .. refusal end
  if slices and slices <= 0 and inbound then return 'PRESSURE' end
  slices = slices and slices - 1
  local by = ARGV[at + 14]
  local by_is_over = by ~= '' and is_over(tenant .. ':' .. by)
  if by_is_over then return 'REFUSED parent_ended' end
  if parent ~= '' then
    local parents, used = unpack(call('HMGET', turn_key(tenant .. ':' .. parent), TURN.budget, TURN.budget_used))
    if not parents then return 'REFUSED unknown_parent' end
    if is_over(tenant .. ':' .. parent) then return 'REFUSED parent_ended' end
    if num(used or 0) + budget > num(parents) then return 'REFUSED budget_exceeds_parent' end
    call('HINCRBY', turn_key(tenant .. ':' .. parent), TURN.budget_used, budget)
  end
  -- It counts from now on, not from the reply on.
  if inbox ~= '' and not has_inbox(tenant, inbox) then use_inboxes({ [tenant] = { now, inbox } }, reply_retain) end
  local lease = num(ARGV[at + 12])
  local cancelled = any_early({ tt }, early_ms, now) and why_early(tt)
  -- One that ends at once was never out.
  local record = { TURN.agent, agent, TURN.queue, queue, TURN.calls, 1, TURN.admitted, (cancelled or expired) and 0 or 1,
    TURN.deadline_ms, deadline, TURN.admitted_ms, now, TURN.kind, 'task', TURN.budget, budget, TURN.budget_used, 0,
    TURN.meta, ARGV[at + 10], TURN.bytes, bytes, TURN.call .. 0, ARGV[at + 11] }
  if given ~= '' then
    record[#record + 1], record[#record + 2] = TURN.given, '1'
    call('SET', id_key(tt), 'a' .. digest)
    -- What an earlier task of this id began is not this one's.
    call('DEL', under_key(tt))
  end
  if lease > 0 then record[#record + 1], record[#record + 2] = TURN.external_lease_ms, lease end
  list(tasks_key(tenant), ARGV[at + 2])
  if parent ~= '' then
    record[#record + 1], record[#record + 2] = TURN.parent, parent
    list(children_key(tenant .. ':' .. parent), ARGV[at + 2])
    put_under(tenant .. ':' .. parent, ARGV[at + 2], now)
  end
  if by_is_over == false and ARGV[at + 15] == '1' then
    put_under(tenant .. ':' .. by, ARGV[at + 2], now)
    -- Its end has to look at what it has begun (see settle).
    call('HSET', turn_key(tenant .. ':' .. by), TURN.fresh, '')
  end
  t.unfinished, t.bytes = t.unfinished + 1, t.bytes + bytes
  if cancelled or expired then
    local reason, info = 'expired', deadline
    if cancelled then
      record[#record + 1], record[#record + 2] = TURN.cancelled, cancelled
      take_early(tt)
      reason, info = 'cancelled', now
    end
    call('HSET', turn_key(tt), unpack(record))
    return 'OK ' .. lease_ending(tt, turn_key(tt), { done = 0 }, reason, 1, info, now, 0)[2]
  end
  local fence = dispatch(queue, tt, ARGV[at + 10], 0, 0, 0, { ARGV[at + 11] })
  record[#record + 1], record[#record + 2] = TURN.fence, fence
  call('HSET', turn_key(tt), unpack(record))
  if lease > 0 then
    call('SADD', P .. 'externals', queue)
  end
  call('ZADD', TIMERS, lease > 0 and math.min(deadline, now + lease) or deadline, 't:' .. tt)
  t.out = t.out + 1
  return 'OK ' .. fence
end

local replies = { tostring(now) }
for i = 1, num(ARGV[9]) do
  local at = 10 + (i - 1) * 16
  local word = delegate(at)
  replies[i + 1] = word
  if ARGV[at] ~= '' and (string.sub(word, 1, 2) == 'OK' or word == 'DUPLICATE') then
    acked[#acked + 1] = ARGV[at]
    -- Its record tells of it from now on.
    local given = ARGV[at + 3] ~= '' and task_id_of(ARGV[at + 1] .. ':' .. ARGV[at + 2])
    if given and redis.pcall('HGET', QUEUED, given) == ARGV[at] then call('HDEL', QUEUED, given) end
  end
end
save_tenants()
end_inbound(P .. 'tasks', acked)
return replies
