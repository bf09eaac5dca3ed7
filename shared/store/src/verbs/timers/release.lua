#!lua
-- release: a lane's next window has begun: dispatches from it in admission order what budgets and limits allow. A lane is
-- an agent's, or that of a limit's counter.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 generations decided by (see outdated) · 3 ending lease ms · 4 tenant_ready_max · 5 turns per lane and
--       script · 6 policies, then per policy 7 values; rows of limits, and the counters that turns debit (see
--       read_rows); then the count of lanes, and per lane: its name (tenant:agent or limit@counter) · how many of
--       its turns follow, or -1: whichever lie on it. Per turn: tenant:turn · position of its next call · agent · policy
--       number (0: the agent is no longer configured; -1: its tenant's declaration cannot be read, so nothing is decided) ·
--       stagger ms · what its calls debit from there on (see read_debits). For -1 agent, policy number and stagger ms, once;
--       at last, what Redis called itself when the caller connected, or ''
-- reply {OK, now, per lane {released turns, released calls (but those that go on after a wait), late ms, endings, 'ASIDE <why>', 'STOP <limit>' (a turn waits
--       for it now) or 'SHADE <limit>' (one would have to)…}}; or
--       {POLICY_STALE, now} · {TENANTS_STALE, now} · {DAY_STALE, now}: nothing written
-- effect XADD ready, ZREM lane, HSET turn and counters (what a turn debited that gave its places back, it does not debit again), ZADD to another lane, re-arms or clears the lane's timer; XADD dead
--       for what cannot be read
local now, _, tight, meta = clock(ARGV[1], 'run_id', 'epoch_ms', 'ran_ms', 'policy_gen', 'tenants_gen')
local slices = room(tight)
local epoch_ms = epoch(now, ARGV[#ARGV], meta)
local policy_gen, tenants_gen = unpack(meta, 7, 8)
local stale = outdated(policy_gen, tenants_gen, ARGV[2])
if stale then return { stale, now } end
local ending_lease, ready_max, bound = num(ARGV[3]), num(ARGV[4]), num(ARGV[5])
local policies, at = read_policies(7, num(ARGV[6]))
at = read_rows(at)
-- How long a lane rests whose tenant cannot be decided about, ms.
local REST_MS = 1000
-- A turn that has gone from lane to lane for long says no more of it.
local NOTES_MAX = 4000
if day_is_stale(policies, now) or rows_are_stale(now) then return { 'DAY_STALE', now } end

-- How many calls the turn's task still allows, and its whole budget; nil where it has ended, or is over.
local function task_left(tenant, task, wanted)
  if not task then return wanted end
  local budget, used, cancelled, fence = unpack(call('HMGET', turn_key(tenant .. ':' .. task), TURN.budget, TURN.budget_used,
    TURN.cancelled, TURN.fence))
  if not budget or cancelled or fence and string.sub(fence, 1, 2) == 's:' then return nil end
  return num(budget) - num(used or 0), budget
end

-- What the record of a turn says; false where there is none, or a slice of it is out.
local function record_of(tt)
  local calls, admitted, done, queue, task, cancelled, deadline, log, fence, lane, place, holds, shades, paid = unpack(call('HMGET',
    turn_key(tt), TURN.calls, TURN.admitted, TURN.done, TURN.queue, TURN.task, TURN.cancelled, TURN.deadline_ms, TURN.log,
    TURN.fence, TURN.lane, TURN.lane_place, TURN.holds, TURN.shades, TURN.paid))
  -- A lane names turns with calls left and nothing out; anything else is repaired by forgetting it here.
  if not calls or fence then return false end
  local rec = {
    calls = whole(calls), admitted = whole(admitted), done = whole(done or '0'), queue = queue, task = task, cancelled = cancelled,
    deadline = sound(deadline), deadline_text = deadline, log = log, lane = lane, place = sound(place or '0'),
    holds = holds, shades = shades,
  }
  if not (rec.calls and rec.admitted and rec.done and queue and rec.deadline and rec.place) then
    error('its record cannot be read', 0)
  end
  -- Calls that a limit refused have their results without having been admitted.
  rec.next = math.max(rec.admitted, rec.done)
  rec.paid = math.min(paid_of(paid) or 0, rec.calls)
  if rec.paid <= rec.next then rec.paid = nil end
  return rec
end

-- Puts a turn on the lane of what stops it now.
local function hop(turn, rec, c, due)
  local tt, key = turn.tt, turn_key(turn.tt)
  if not c then
    local tenant, id = split(tt)
    put_on_lane(tenant, turn.agent, id, rec.place, due)
    call('HDEL', key, TURN.lane)
    return
  end
  wait_for(c, tt, rec.place, due)
  if rec.paid then
    call('HSET', key, TURN.lane, name_of(c))
    return
  end
  local note = wait_note(tostring(now), c)
  if rec.log then note = rec.log .. ';' .. note end
  call('HSET', key, TURN.lane, name_of(c), TURN.log, #note <= NOTES_MAX and note or rec.log)
end

-- How many of a turn's next `k` calls its limits let go; or 0, what stops it, and when there may be room.
local function limited(turn, rec, k, stops)
  if not turn.debits then return k end
  local stop = behind(turn.debits, rec.lane, rec.place)
  -- Whether they still wait is seen at the head of their lane.
  if stop then return 0, stop, now end
  local told = { first = rec.next }
  k, stop = fit(turn.debits, k, epoch_ms, told)
  for i = 1, #told do stops[#stops + 1] = 'SHADE ' .. told[i] end
  turn.shades = told.notes
  return k, stop, stop and next_look(stop.c, now)
end

-- Nothing can be decided about calls that need places again: nobody waits behind them meanwhile.
local function rest(turn, rec)
  call('HDEL', turn_key(turn.tt), TURN.lane)
  call('ZADD', TIMERS, math.min(rec.deadline, now + REST_MS), 't:' .. turn.tt)
  return 0
end

-- How many of a turn's calls have places again that gave theirs back; or 0, what stops it, and when there may be room.
local function places_again(turn, rec)
  local wanted = rec.paid - rec.next
  turn.places = turn.debits and places_in(turn.debits)
  if not turn.places then return wanted end
  local stop = behind(turn.places, rec.lane, rec.place)
  if stop then return 0, stop, now end
  local k, stop = fit(turn.places, wanted, epoch_ms, {})
  return k, stop, stop and next_look(stop.c, now)
end

-- A turn whose call waited for somebody else, and gave its places back. What has a window it has debited, and what no place
-- can come of ends it: nothing else refuses it.
local function resume(turn, rec, stops, ending, elsewhere) -- rarely
  if slices and slices <= 0 then return nil, now + 1000 end
  if turn.next and turn.next ~= rec.next then return nil, now end
  local tt, key = turn.tt, turn_key(turn.tt)
  turn.resumes = true
  local k, stop, room_ms = places_again(turn, rec)
  if k <= 0 then
    local ends, reason, info = refusal_of(stop, rec.paid - rec.next, epoch_ms)
    if reason and reason ~= 'limit_reached' and room_ms > now then
      call('HSET', key, TURN.lane, name_of(stop.c))
      return ending(reason, info, rec.next + ends)
    end
    if name_of(stop.c) ~= turn.lane then stops[#stops + 1] = 'STOP ' .. stop.c.row.name end
    return elsewhere(stop.c, room_ms)
  end
  local body = body_of_record(key, rec.next, rec.next + k)
  if not body then return ending('internal', 0) end
  slices = slices and slices - 1
  local fence = dispatch(rec.queue, tt, body.meta, rec.next, body.crashes, body.attempt, body.calls, body.lost, body.waited,
    body.shades)
  -- A scheduler of a build before this one leaves it there.
  call('ZREM', P .. 'delayed', tt)
  free_places(tt, key, rec.holds, now)
  local holds = turn.places and debit_counters(tt, turn.places, k, now)
  if holds then call('HSET', key, TURN.holds, holds) end
  local t = tenant_of((split(tt)))
  t.out = t.out + 1
  call('HSET', key, TURN.fence, fence, TURN.admitted, rec.next + k, TURN.log, with_places_note(rec.log, 'H', now, k))
  if rec.next + k >= rec.paid then call('HDEL', key, TURN.paid) end
  -- What is left of it waits for the same limit, until something else is known to stop it.
  if stop then call('HSET', key, TURN.lane, name_of(stop.c)) elseif rec.next + k >= rec.calls then call('HDEL', key, TURN.lane) end
  return k
end

-- One turn of the lane `lane`, at its head. Answers an ending, the number of calls dispatched (0: it waits elsewhere now),
-- or nil and when to look again.
local function release(lane, turn, rec, stops)
  local tt, a = turn.tt, turn.a
  local tenant = split(tt)
  local t, key, policy = tenant_of(tenant), turn_key(tt), policies[turn.policy]
  local wanted = rec.calls - rec.next
  local function ending(reason, info, upto)
    return lease_ending(tt, key, rec, reason, upto or rec.calls, info, now, ending_lease)
  end
  -- What stops it is not what this lane waits for.
  local function elsewhere(c, due)
    if (c and name_of(c) or tenant .. ':' .. turn.agent) == lane then return nil, due end
    hop(turn, rec, c, due)
    return 0
  end
  if turn.policy == -1 then
    if rec.paid then return rest(turn, rec) end
    return elsewhere(nil, now + REST_MS)
  end
  if not policy then return ending('rejected', now) end
  if rec.cancelled then return ending('cancelled', now) end
  if rec.deadline <= now then return ending('expired', rec.deadline_text) end
  turn.lane = lane
  if rec.paid then return resume(turn, rec, stops, ending, elsewhere) end
  local left, budget = task_left(tenant, rec.task, wanted)
  if not left then
    rec.why = 'the task that it ran under has ended'
    return ending('cancelled', now)
  end
  if left <= 0 then return ending('task_budget_reached', budget) end
  local day, resets = day_left(a, t, policy)
  if day <= 0 then
    if policy.reject then return ending('daily_cap_reached', resets) end
    return elsewhere(nil, resets)
  end
  local k, stop, room_ms = math.min(wanted, tick_left(a, policy, epoch_ms), day, left), nil, nil
  if k <= 0 or t.out >= ready_max then return elsewhere(nil, a.tick_end) end
  -- Memory is short: what is out comes first.
  if slices and slices <= 0 then return nil, now + 1000 end
  -- What it debits was reckoned from another call on: it is looked at again.
  if turn.next and turn.next ~= rec.next then return nil, now end
  k, stop, room_ms = limited(turn, rec, k, stops)
  if k <= 0 then
    local ends, reason, info = refusal_of(stop, wanted, epoch_ms)
    if reason and room_ms > now then
      call('HSET', key, TURN.lane, name_of(stop.c))
      return ending(reason, info, rec.next + ends)
    end
    if name_of(stop.c) ~= lane then stops[#stops + 1] = 'STOP ' .. stop.c.row.name end
    return elsewhere(stop.c, room_ms)
  end
  local body = body_of_record(key, rec.next, rec.next + k)
  if not body then return ending('internal', 0) end
  slices = slices and slices - 1
  local fence = dispatch(rec.queue, tt, body.meta, rec.next, 0, 0, body.calls, nil, nil, turn.shades)
  if turn.shades or rec.shades then call('HSET', key, TURN.shades, turn.shades or '') end
  debit(a, t, k)
  -- What a build held that knows no places.
  free_places(tt, key, rec.holds, now)
  local holds = turn.debits and debit_counters(tt, turn.debits, k, now)
  if holds then call('HSET', key, TURN.holds, holds) end
  t.out = t.out + 1
  if rec.task then call('HINCRBY', turn_key(tenant .. ':' .. rec.task), TURN.budget_used, k) end
  local note = admission_note(tostring(now), k, a, policy)
  if rec.task then note = note .. task_note(num(budget) - left + k, num(budget)) end
  if tells_debits then note = note .. debits_note(turn.debits, k) end
  if holds then note = note .. slots_note(turn.debits) end
  -- What the slice before debited stands in the audit log.
  if rec.log then note = string.gsub(rec.log, ';D[^;]*', '') .. ';' .. note end
  call('HSET', key, TURN.fence, fence, TURN.admitted, rec.next + k, TURN.log, note)
  if stop then call('HSET', key, TURN.lane, name_of(stop.c)) elseif rec.lane then call('HDEL', key, TURN.lane) end
  return k
end

-- The turns of a lane that are looked at: those that the caller brought, or whichever come first.
local function turns_of(lane)
  if lane.turns then return lane.turns end
  local found, turns = call('ZRANGE', lane.key, 0, bound - 1), {}
  for i = 1, #found do
    turns[i] = { tt = lane.tenant .. ':' .. found[i], agent = lane.agent, policy = lane.policy, stagger = lane.stagger }
  end
  return turns
end

-- One turn of a lane. Answers what `release` does. Rule 18: a record that cannot be read leaves the lane; what only cannot
-- be done now is tried again later.
local function look_at_turn(lane, turn, reply)
  local tenant = split(turn.tt)
  if not tenant then
    reply[#reply + 1] = 'ASIDE no turn has this name'
    put_aside('lane', turn.tt, 'no turn has this name')
    return 0
  end
  local policy = policies[turn.policy]
  turn.a = agent_of(tenant .. ':' .. turn.agent, now)
  if policy then roll(turn.a, tenant_of(tenant), policy, turn.stagger, now) end
  local readable, rec = alone(record_of, turn.tt)
  if not readable then
    reply[#reply + 1] = 'ASIDE ' .. rec
    put_aside('lane', turn.tt, rec)
    return 0
  end
  if not rec then return 0 end
  local done, out, later = alone(release, lane.name, turn, rec, reply)
  if done then return out, later end
  reply[#reply + 1] = 'ASIDE ' .. out
  return nil, now + ending_lease
end

-- One lane: turns until nothing more may go, the lane is empty, or the bound of this script is reached.
local function look_at(lane)
  local timer, key = 'l:' .. lane.name, lane.key
  local due = num(call('ZSCORE', TIMERS, timer) or 'inf')
  if due > now then return { 0, 0, 0 } end
  if lane.policy == -1 then
    call('ZADD', TIMERS, now + REST_MS, timer)
    return { 0, 0, 0 }
  end
  local reply, again, turns = { 0, 0, now - due }, now, turns_of(lane)
  for i = 1, #turns do
    local out, later = look_at_turn(lane, turns[i], reply)
    if not out then
      again = later
      break
    end
    local _, id = split(turns[i].tt)
    call('ZREM', key, lane.tenant and id or turns[i].tt)
    if type(out) == 'table' then
      reply[#reply + 1] = out
    elseif out ~= 'LATER' and out > 0 then
      -- Calls that go on were told when they went out first.
      reply[1], reply[2] = reply[1] + 1, reply[2] + (turns[i].resumes and 0 or out)
    end
  end
  if call('ZCARD', key) > 0 then
    call('ZADD', TIMERS, again, timer)
  else
    call('ZREM', TIMERS, timer)
  end
  return reply
end

local lanes, names, seen = {}, {}, {}
local function see(name)
  if not seen[name] then seen[name], names[#names + 1] = true, name end
end
local count = num(ARGV[at])
at = at + 1
for i = 1, count do
  local lane, brought = { name = ARGV[at], key = P .. 'lane:' .. ARGV[at] }, num(ARGV[at + 1])
  lane.tenant, lane.agent = string.match(lane.name, '^([^:@]+):([^:@]+)$')
  at = at + 2
  if brought < 0 then
    lane.agent, lane.policy, lane.stagger = ARGV[at], num(ARGV[at + 1]), num(ARGV[at + 2])
    at = at + 3
    see(lane.name)
  else
    lane.turns = {}
    for j = 1, brought do
      local turn = { tt = ARGV[at], next = num(ARGV[at + 1]), agent = ARGV[at + 2], policy = num(ARGV[at + 3]),
        stagger = num(ARGV[at + 4]) }
      turn.debits, at = read_debits(at + 5)
      lane.turns[j] = turn
      local tenant = split(turn.tt)
      if tenant then see(tenant .. ':' .. turn.agent) end
    end
  end
  lanes[i] = lane
end
load_agents(names)
if #counter_list > 0 then load_counters(now, epoch_ms, ending_lease) end
local replies = { 'OK', now }
for i = 1, count do
  local done, reply = alone(look_at, lanes[i])
  if not done then
    call('ZADD', TIMERS, now + ending_lease, 'l:' .. lanes[i].name)
    reply = { 0, 0, 0, 'ASIDE ' .. reply }
  end
  replies[i + 2] = reply
end
save_agents()
save_tenants()
save_counters()
return replies
