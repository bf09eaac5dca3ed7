#!lua flags=allow-oom
-- decide_approval: a person agrees to a call, or denies it. It counts once for each person; a denial ends it. The audit log
-- has it in the same step. Whoever waits goes on.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant · 3 approval · 4 who · 5 that one's roles, with commas · 6 approve or deny · 7 why ·
--       8 what is changed of the arguments JSON, or '' · 9 what was changed of them when that one looked, likewise ·
--       10 audit entry, JSON whose last object and itself are still open · 11 what is changed, without secrets, for notices
-- reply {OK, state, approvers that are missing still} · UNKNOWN · OWN (the agent's own call) · ROLE (not one of those who
--       may) · {ENDED, state} (decided, expired, or taken by its call before) · GONE (its call is over, or another one by
--       now) · CHANGED (the arguments are others than that one has looked at) · AGAIN (that one has agreed already)
-- effect HSET approval, ZREM asked, XADD approvals and audit, ZADD timers
local now = shard_time(ARGV[1])
local tenant, id, who, own_roles, verdict, why, narrowed, seen, entry, shown = unpack(ARGV, 2, 11)
local record = approval_key(tenant .. ':' .. id)
local state, about, agent, demands, until_ms, expires_ms, changed = unpack(call('HMGET', record, APPROVAL.state,
  APPROVAL.call, APPROVAL.agent, APPROVAL.demands, APPROVAL.until_ms, APPROVAL.expires_ms, APPROVAL.narrowed))

local function has_one_of(roles, wanted)
  if wanted == '' then return true end
  for role in string.gmatch(wanted, '[^,]+') do
    if string.find(',' .. roles .. ',', ',' .. role .. ',', 1, true) then return true end
  end
  return false
end

local function may_decide()
  for wanted in string.gmatch(demands .. ';', '%d+:([^;]*);') do
    if has_one_of(own_roles, wanted) then return true end
  end
  return false
end

-- How many more have to agree: of what asks, the one that lacks the most.
local function missing()
  local votes, fields = {}, call('HGETALL', record)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, #APPROVAL.vote) == APPROVAL.vote then votes[#votes + 1] = string.match(fields[i + 1], '^%d+ (.*)$') or '' end
  end
  local most = 0
  for quorum, wanted in string.gmatch(demands .. ';', '(%d+):([^;]*);') do
    local found = 0
    for i = 1, #votes do
      if has_one_of(votes[i], wanted) then found = found + 1 end
    end
    most = math.max(most, num(quorum) - found)
  end
  return most
end

-- Those who have agreed to other arguments have not agreed to these.
local function forget_votes()
  local fields = call('HGETALL', record)
  for i = 1, #fields, 2 do
    local kind = string.sub(fields[i], 1, #APPROVAL.vote)
    if kind == APPROVAL.vote or kind == APPROVAL.reason then call('HDEL', record, fields[i]) end
  end
end

local function audit(now_state, left)
  call('XADD', P .. 'audit', '*', 'audit', entry .. ',"state":"' .. now_state .. '","missing":' .. left .. '}}')
end

if not state then return { 'UNKNOWN' } end
if who == agent then return { 'OWN' } end
if state ~= 'waiting' and state ~= 'approved' then return { 'ENDED', state } end
if num(until_ms) <= now then
  end_approval(tenant, id, 'expired', now)
  return { 'ENDED', 'expired' }
end
local turn, position = string.match(about, '^(.+)/(%d+)$')
local tt = tenant .. ':' .. turn
local calls, done, asked, deadline, cancelled = unpack(call('HMGET', turn_key(tt), TURN.calls, TURN.done, TURN.approval,
  TURN.deadline_ms, TURN.cancelled))
if not calls or num(done or 0) > num(position) or asked ~= id or cancelled or num(deadline) <= now then
  end_approval(tenant, id, 'void', now)
  return { 'GONE' }
end
if not may_decide() then return { 'ROLE' } end

if verdict == 'deny' then
  call('HSET', record, APPROVAL.state, 'denied', APPROVAL.ended_ms, string.format('%d', now), APPROVAL.ended_by, who,
    APPROVAL.ended_why, why)
  call('HDEL', record, APPROVAL.exact)
  call('PEXPIRE', record, string.format('%d', math.max(num(deadline) - now, 0) + approval_kept()))
  waits_no_more(tenant, id)
  tell_approval(tenant, id, 'denied', about, now, 'by', who, 'reason', why)
  audit('denied', 0)
  call('ZADD', TIMERS, 'XX', 'LT', now, 't:' .. tt)
  return { 'OK', 'denied', '0' }
end

if state == 'approved' then return { 'ENDED', state } end
if (changed or '') ~= seen then return { 'CHANGED' } end
local is_other = narrowed ~= '' and narrowed ~= seen
if not is_other and call('HEXISTS', record, APPROVAL.vote .. who) == 1 then return { 'AGAIN' } end
if is_other then
  forget_votes()
  call('HSET', record, APPROVAL.narrowed, narrowed)
end
call('HSET', record, APPROVAL.vote .. who, string.format('%d', now) .. ' ' .. own_roles, APPROVAL.reason .. who, why)
local left = missing()
if left <= 0 then
  state = 'approved'
  local counts_until = math.min(num(deadline), now + (num(expires_ms) or num(deadline)))
  call('HSET', record, APPROVAL.state, state, APPROVAL.until_ms, string.format('%d', counts_until))
  call('PEXPIRE', record, string.format('%d', counts_until - now + approval_kept()))
  waits_no_more(tenant, id)
  call('ZADD', TIMERS, 'XX', 'LT', now, 't:' .. tt)
end
left = math.max(left, 0)
tell_approval(tenant, id, state == 'approved' and 'approved' or 'agreed', about, now, 'by', who, 'reason', why, 'missing', left,
  'changed', shown)
audit(state, left)
return { 'OK', state, tostring(left) }
