#!lua
-- release: a lane's next window has begun: dispatches from it in admission order what the budgets allow.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 generations decided by (see outdated) · 3 ending lease ms · 4 tenant_ready_max · 5 turns per lane and
--       script · 6 policies, then per policy 7 values; then the count of lanes, and per lane:
--       tenant · agent · policy number (0: the agent is no longer configured; -1: its tenant's declaration cannot be
--       read, so nothing is decided) · stagger ms
-- reply {OK, now, per lane {released turns, released calls, late ms, endings or 'ASIDE <why>'…}}; or {POLICY_STALE, now} ·
--       {TENANTS_STALE, now} · {DAY_STALE, now}: nothing written
-- effect XADD ready, ZREM lane, HSET turn, re-arms or clears the lane's timer; XADD dead for what cannot be read
local now, _, tight = clock(ARGV[1])
local slices = room(tight)
local epoch_ms = epoch(now)
local policy_gen, tenants_gen = unpack(call('HMGET', META, 'policy_gen', 'tenants_gen'))
local stale = outdated(policy_gen, tenants_gen, ARGV[2])
if stale then return { stale, now } end
local ending_lease, ready_max, bound = num(ARGV[3]), num(ARGV[4]), num(ARGV[5])
local policies, at = read_policies(7, num(ARGV[6]))
-- How long a lane rests whose tenant cannot be decided about, ms.
local REST_MS = 1000
if day_is_stale(policies, now) then return { 'DAY_STALE', now } end

-- How many calls the turn's task still allows, and its whole budget; nil where it has ended.
local function task_left(tenant, task, wanted)
  if not task then return wanted end
  local budget, used = unpack(call('HMGET', turn_key(tenant .. ':' .. task), TURN.budget, TURN.budget_used))
  if not budget then return nil end
  return num(budget) - num(used or 0), budget
end

-- What the record of a turn says; false where there is none, or a slice of it is out.
local function record_of(tt)
  local calls, admitted, done, queue, task, cancelled, deadline, log, fence = unpack(call('HMGET', turn_key(tt), TURN.calls,
    TURN.admitted, TURN.done, TURN.queue, TURN.task, TURN.cancelled, TURN.deadline_ms, TURN.log, TURN.fence))
  -- A lane names turns with calls left and nothing out; anything else is repaired by forgetting it here.
  if not calls or fence then return false end
  local rec = {
    calls = num(calls), admitted = num(admitted), done = num(done or 0), queue = queue, task = task, cancelled = cancelled,
    deadline = num(deadline), deadline_text = deadline, log = log,
  }
  if not (rec.calls and rec.admitted and rec.done and queue and rec.deadline) then error('its record cannot be read', 0) end
  return rec
end

-- One turn at the head of a lane. Answers an ending, the number of calls dispatched, or nil and when to look again.
local function release(tenant, turn, rec, a, t, policy)
  local tt = tenant .. ':' .. turn
  local key = turn_key(tt)
  local wanted = rec.calls - rec.admitted
  local function ending(reason, info)
    return lease_ending(tt, key, rec, reason, rec.calls, info, now, ending_lease)
  end
  if not policy then return ending('rejected', now) end
  if rec.cancelled then return ending('cancelled', now) end
  if rec.deadline <= now then return ending('expired', rec.deadline_text) end
  local left, budget = task_left(tenant, rec.task, wanted)
  if not left then
    rec.why = 'the task that it ran under has ended'
    return ending('cancelled', now)
  end
  if left <= 0 then return ending('task_budget_reached', budget) end
  local day, resets = day_left(a, t, policy)
  if day <= 0 then
    if policy.reject then return ending('daily_cap_reached', resets) end
    return nil, resets
  end
  local k = math.min(wanted, tick_left(a, policy, epoch_ms), day, left)
  if k <= 0 or t.out >= ready_max then return nil, a.tick_end end
  -- Memory is short: what is out comes first.
  if slices and slices <= 0 then return nil, now + 1000 end
  slices = slices and slices - 1
  local body = body_of_record(key, rec.admitted, rec.admitted + k)
  if not body then return ending('internal', 0) end
  local fence = dispatch(rec.queue, tt, body.meta, rec.admitted, 0, 0, body.calls)
  debit(a, t, k)
  t.out = t.out + 1
  if rec.task then call('HINCRBY', turn_key(tenant .. ':' .. rec.task), TURN.budget_used, k) end
  local note = admission_note(tostring(now), k, a, policy)
  call('HSET', key, TURN.fence, fence, TURN.admitted, rec.admitted + k, TURN.log, rec.log and rec.log .. ';' .. note or note)
  return k
end

-- One lane: turns until the budgets are used up, the lane is empty, or the bound of this script is reached.
local function lane(tenant, agent, policy, stagger, withheld)
  local name, key = 'l:' .. tenant .. ':' .. agent, lane_key(tenant, agent)
  local due = num(call('ZSCORE', TIMERS, name) or 'inf')
  if due > now then return { 0, 0, 0 } end
  if withheld then
    call('ZADD', TIMERS, now + REST_MS, name)
    return { 0, 0, 0 }
  end
  local a, t = agent_of(tenant .. ':' .. agent, now), tenant_of(tenant)
  if policy then roll(a, t, policy, stagger, now) end
  local reply, again = { 0, 0, now - due }, now
  local turns = call('ZRANGE', key, 0, bound - 1)
  for i = 1, #turns do
    -- Rule 18: a record that cannot be read leaves the lane; what only cannot be done now is tried again later.
    local readable, rec = alone(record_of, tenant .. ':' .. turns[i])
    local done, out, later = readable, 0, nil
    if rec and readable then done, out, later = alone(release, tenant, turns[i], rec, a, t, policy) end
    if not done then
      reply[#reply + 1] = 'ASIDE ' .. (readable and out or rec)
      if readable then out, later = nil, now + ending_lease else out = 0 end
      if not readable then put_aside('lane', tenant .. ':' .. turns[i], rec) end
    end
    if not out then
      again = later
      break
    end
    call('ZREM', key, turns[i])
    if type(out) == 'table' then
      reply[#reply + 1] = out
    elseif out ~= 'LATER' and out > 0 then
      reply[1], reply[2] = reply[1] + 1, reply[2] + out
    end
  end
  if call('EXISTS', key) == 1 then
    call('ZADD', TIMERS, again, name)
  else
    call('ZREM', TIMERS, name)
  end
  return reply
end

local replies, names, count = { 'OK', now }, {}, num(ARGV[at])
at = at + 1
for i = 1, count do
  local name = ARGV[at + i * 4 - 4] .. ':' .. ARGV[at + i * 4 - 3]
  if not names[name] then names[name], names[#names + 1] = true, name end
end
load_agents(names)
for i = 1, count do
  local tenant, agent = ARGV[at], ARGV[at + 1]
  local done, reply = alone(lane, tenant, agent, policies[num(ARGV[at + 2])], num(ARGV[at + 3]), ARGV[at + 2] == '-1')
  if not done then
    call('ZADD', TIMERS, now + ending_lease, 'l:' .. tenant .. ':' .. agent)
    reply = { 0, 0, 0, 'ASIDE ' .. reply }
  end
  replies[i + 2] = reply
  at = at + 4
end
save_agents()
save_tenants()
return replies
