#!lua flags=allow-oom
-- use_approval: what people have said about a call, by whoever is about to carry it out. A consent is taken here, by the
-- one call that it is bound to and under that call's fence: it may not be withdrawn after that, and whoever takes the call
-- over finds it taken by the same. Where something else may still stop the call, it is looked at first, and taken after that.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 approvals of a tenant that may wait · 3 of an agent · 4 count, then per call:
--       tenant · turn · fence · position · approval · binding · '1' where a consent is taken · agent
-- reply per call: {GIVEN, what was changed of the arguments JSON or '', the names of those who agreed, with blanks} ·
--       {DENIED, by, why} · {EXPIRED, since ms} · WAITS · {NONE, the approval that was asked for before or '', its
--       state} · {FULL, the bound that is reached: tenant or agent} (nobody can be asked) · OTHERS (the id is
--       another call's) · STALE
-- effect HSET approval (state), ZREM asked, XADD approvals
local now = clock(ARGV[1])

-- Those who have agreed, by name, with blanks between.
local function names(record)
  local found, fields = {}, call('HGETALL', record)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, #APPROVAL.vote) == APPROVAL.vote then found[#found + 1] = string.sub(fields[i], #APPROVAL.vote + 1) end
  end
  table.sort(found)
  return table.concat(found, ' ')
end

-- Nobody was asked about this very call.
local function none(tenant, before, agent)
  local bound = approvals_full(tenant, agent, now, ARGV[2], ARGV[3])
  if bound then return { 'FULL', bound } end
  local state = before and redis.pcall('HGET', approval_key(tenant .. ':' .. before), APPROVAL.state)
  return { 'NONE', before or '', type(state) == 'string' and state or '' }
end

-- It counts: from now on it is this call's.
local function take(tenant, id, record, about, deadline)
  call('HSET', record, APPROVAL.state, 'used', APPROVAL.ended_ms, string.format('%d', now))
  call('HDEL', record, APPROVAL.exact)
  call('PEXPIRE', record, string.format('%d', math.max(deadline - now, 0) + approval_kept()))
  waits_no_more(tenant, id)
  tell_approval(tenant, id, 'used', about, now)
end

local function use(at)
  local tenant, turn, fence, position, id, binding, takes, agent = unpack(ARGV, at, at + 7)
  local in_force, done, before, deadline = unpack(call('HMGET', turn_key(tenant .. ':' .. turn), TURN.fence, TURN.done,
    TURN.approval, TURN.deadline_ms))
  if in_force ~= fence or num(position) < num(done or 0) then return 'STALE' end
  local record = approval_key(tenant .. ':' .. id)
  local state, bound, about, until_ms, narrowed, by, why = unpack(call('HMGET', record, APPROVAL.state, APPROVAL.binding,
    APPROVAL.call, APPROVAL.until_ms, APPROVAL.narrowed, APPROVAL.ended_by, APPROVAL.ended_why))
  if not state or state == 'void' then return none(tenant, before ~= id and before, agent) end
  if bound ~= binding or about ~= turn .. '/' .. position then return 'OTHERS' end
  if state == 'denied' then return { 'DENIED', by or '', why or '' } end
  if state == 'waiting' and num(until_ms) > now then return 'WAITS' end
  if state == 'approved' and num(until_ms) > now then
    if takes == '1' then take(tenant, id, record, about, num(deadline)) end
    state = 'used'
  end
  if state == 'used' then return { 'GIVEN', narrowed or '', names(record) } end
  end_approval(tenant, id, 'expired', now)
  return { 'EXPIRED', until_ms }
end

local replies = {}
for i = 1, num(ARGV[4]) do replies[i] = word_of(use, i * 8 - 3) end
return replies
