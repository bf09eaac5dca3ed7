#!lua
-- admit: decides a batch of inbound turns: debits every budget of their chains and dispatches what fits.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 generations decided by (see outdated) · 3 ending lease ms · 4 tenant_turns_max · 5 tenant_ready_max ·
--       6 inbox_unread_max · 7 inboxes_max per tenant · 8 reply retain ms · 9 policies, then per policy (see
--       read_policies) 7 values; rows of limits (see read_rows);
--       then the count of turns, and per turn: entry · tenant · tenant:agent · tenant:turn · digest ('' where the id was
--       minted) · policy number · queue · deadline ms · stagger ms · inbox or '' · task or '' · meta · calls, calls… ·
--       counters (see read_debits); at last, what Redis called itself when the caller connected, or ''
-- reply {OK, now, per turn…} where a turn is DISPATCHED · LANED (behind either, the limits that it met: those in whose
--       shadow it was, or the one that it waits for) · DUPLICATE · CONFLICT · REFUSED <code> · LATER (it
--       ends when its timer says so) or {an ending, see lease_ending}; or {POLICY_STALE, now} · {TENANTS_STALE, now} ·
--       {DAY_STALE, now} · {PRESSURE, now, how many turns may come now} (memory is short, see room): nothing written
-- effect XADD ready or ZADD lane, HSET turn and counters, ZADD timers; acknowledges all but CONFLICT and REFUSED, which the
--       caller rejects with a reply
local now, _, tight, meta = clock(ARGV[1], 'run_id', 'epoch_ms', 'ran_ms', 'policy_gen', 'seq', 'tenants_gen', 'early_ms')
local epoch_ms = epoch(now, ARGV[#ARGV], meta)
local policy_gen, last_seq, tenants_gen, early_ms = unpack(meta, 7, 10)
local stale = outdated(policy_gen, tenants_gen, ARGV[2])
if stale then return { stale, now } end
local ending_lease, turns_max, ready_max = num(ARGV[3]), num(ARGV[4]), num(ARGV[5])
local inbox_max, inboxes_max, reply_retain = num(ARGV[6]), num(ARGV[7]), num(ARGV[8])
local policies, at = read_policies(10, num(ARGV[9]))
at = read_rows(at)
if day_is_stale(policies, now) or rows_are_stale(now) then return { 'DAY_STALE', now } end

last_seq = num(last_seq or 0)
local seq, now_text = last_seq, string.format('%d', now)
local tasks, boxes, claimed, seen, timers, held, given, stream = {}, {}, {}, {}, {}, {}, {}, P .. 'turns'
local any_known, cancelled_early

-- What many turns of a batch say alike is read once.
local numbers = {}
local function number(text)
  local n = numbers[text]
  if not n then
    n = num(text)
    numbers[text] = n
  end
  return n
end

-- The action budget of the task that a turn runs under; nil where there is no such task.
local function task_of(tenant, task)
  local key = turn_key(tenant .. ':' .. task)
  if tasks[key] == nil then
    local budget, used = unpack(call('HMGET', key, TURN.budget, TURN.budget_used))
    tasks[key] = budget and { max = num(budget), used = num(used or 0) } or false
  end
  return tasks[key]
end

-- What an inbox says of a turn: false (it takes it), why it does not, or 'new' where it would be the tenant's next one.
local function look_at_box(tenant, inbox)
  local name = tenant .. ':' .. inbox
  local box = boxes[name]
  if box == nil then
    box = false
    if unread(name, inbox_max) >= inbox_max then
      box = 'inbox_full'
    elseif not has_inbox(tenant, inbox) then
      local more = claimed[tenant] and #claimed[tenant] / 2 or 0
      box = has_room_for_inbox(tenant, inboxes_max - more, now, reply_retain) and 'new' or 'too_many_inboxes'
    end
    if box ~= 'new' then boxes[name] = box end
  end
  return box
end

-- Mostly a turn names the inbox that the one before it did.
local last_tenant, last_inbox, last_box
local function box_of(tenant, inbox)
  if inbox == '' then return false end
  if last_box ~= 'new' and inbox == last_inbox and tenant == last_tenant then return last_box end
  last_tenant, last_inbox, last_box = tenant, inbox, look_at_box(tenant, inbox)
  return last_box
end

-- A new inbox counts from now on, not from its first reply on: else any number could be on their way.
local function claim(tenant, inbox)
  local of = claimed[tenant] or {}
  of[#of + 1], of[#of + 2], claimed[tenant] = now, inbox, of
  boxes[tenant .. ':' .. inbox] = false
end

-- DUPLICATE, CONFLICT or nil. The inbound entry is the fence: a scheduler that slept while reap put the entry back
-- must not admit it a second time, however long ago the first turn has ended and its record has gone.
local function known(tt, entry, digest)
  if not (held[entry] or is_open(stream, entry)) then return 'DUPLICATE' end
  if seen[tt] then return seen[tt] == digest and 'DUPLICATE' or 'CONFLICT' end
  -- A minted id that a producer gave to another turn is that one's, by whatever accident: this is no duplicate of it.
  if digest == '' then
    if not any_known or call('EXISTS', turn_key(tt), done_key(tt)) == 0 then return nil end
    return call('EXISTS', id_key(tt)) == 1 and 'CONFLICT' or 'DUPLICATE'
  end
  local id = call('GET', id_key(tt))
  -- Somebody's minted id: it cannot be given to another turn.
  if not id then return call('EXISTS', turn_key(tt), done_key(tt)) > 0 and 'CONFLICT' or nil end
  if string.sub(id, 2) ~= digest then return 'CONFLICT' end
  return string.sub(id, 1, 1) ~= 'q' and 'DUPLICATE' or nil
end

-- A limit stops the turn's first call: it ends, and those behind it that the same counter stops, or the turn waits.
local function stopped(turn, stop)
  local c = stop.c
  local ends, reason, info = refusal_of(stop, turn.n, epoch_ms)
  if reason and not c.first then
    turn.word, turn.reason, turn.info, turn.upto, turn.back = 'ENDING', reason, info, ends, c.name
  else
    turn.word, turn.waits, turn.back, turn.note, c.first = 'LANED', c, c.name, wait_note(now_text, c), c.first or 0
  end
end

-- Reads one turn's arguments and decides about it; writes nothing, but the counters in memory.
local function plan(turn)
  local at, tenant, n = turn.at, turn.tenant, turn.n
  turn.word = known(turn.tt, ARGV[at], ARGV[at + 4])
  if turn.word then return end
  local t, inbox, task_id = tenant_of(tenant), ARGV[at + 9], ARGV[at + 10]
  local box = box_of(tenant, inbox)
  local refusal = box ~= 'new' and box
  local task = task_id ~= '' and task_of(tenant, task_id)
  if task == false and task_id ~= '' then refusal = 'unknown_task' end
  if t.unfinished >= turns_max then refusal = 'tenant_queue_full' end
  if refusal then
    turn.word = 'REFUSED ' .. refusal
    return
  end
  seen[turn.tt] = ARGV[at + 4]
  if box == 'new' then claim(tenant, inbox) end
  local a, policy, deadline = agent_of(ARGV[at + 2], now), policies[number(ARGV[at + 5])], number(ARGV[at + 7])
  roll(a, t, policy, number(ARGV[at + 8]), now)
  t.unfinished = t.unfinished + 1
  turn.a = a
  local day, resets = day_left(a, t, policy)
  local left = task and task.max - task.used or n
  if cancelled_early then turn.cancelled = early(turn.tt) end
  if turn.cancelled then
    turn.word, turn.reason, turn.info = 'ENDING', 'cancelled', now
  elseif deadline <= now then
    turn.word, turn.reason, turn.info = 'ENDING', 'expired', deadline
  elseif a.waiting then
    turn.word, turn.due = 'LANED', day <= 0 and not policy.reject and resets or a.tick_end
  elseif left <= 0 then
    turn.word, turn.reason, turn.info = 'ENDING', 'task_budget_reached', task.max
  elseif day <= 0 and policy.reject then
    turn.word, turn.reason, turn.info = 'ENDING', 'daily_cap_reached', resets
  else
    local k, stop = math.min(n, tick_left(a, policy, epoch_ms), day, left), nil
    if t.out >= ready_max then k = 0 end
    if k > 0 and turn.debits then
      turn.told = {}
      stop = behind(turn.debits)
      if stop then k = 0 else k, stop = fit(turn.debits, k, epoch_ms, turn.told) end
    end
    if k > 0 then
      debit(a, t, k)
      if turn.debits then turn.holds = debit_counters(turn.tt, turn.debits, k, now) end
      if stop then turn.back = stop.c.name end
      if task then task.used = task.used + k end
      t.out, turn.admitted, turn.word = t.out + 1, k, 'DISPATCHED'
      turn.note = admission_note(now_text, k, a, policy)
    elseif stop then
      stopped(turn, stop)
    else
      turn.word, turn.due = 'LANED', day <= 0 and resets or a.tick_end
      a.waiting = true
    end
  end
end

-- The record of a turn, and where its calls wait. One table serves all records, and one all slices: making them costs
-- more than filling them.
local record = { TURN.agent, '', TURN.queue, '', TURN.calls, '', TURN.admitted, '', TURN.deadline_ms, '', TURN.admitted_ms,
  now_text, TURN.meta, '' }
local out = {}
local function write(turn)
  local from, tt, tenant, k, n, at = turn.at, turn.tt, turn.tenant, turn.admitted, turn.n, 14
  local key, agent, queue, meta = turn_key(tt), string.sub(ARGV[from + 2], #tenant + 2), ARGV[from + 6], ARGV[from + 11]
  local digest, task = ARGV[from + 4], ARGV[from + 10]
  record[2], record[4], record[6], record[8] = agent, queue, ARGV[from + 12], k == n and ARGV[from + 12] or k
  record[10], record[14] = ARGV[from + 7], meta
  -- Rule 21: the record answers without the entry, whatever becomes of that.
  for i = 1, n do record[at + 1], record[at + 2], at = TURN.call .. (i - 1), ARGV[from + 12 + i], at + 2 end
  if digest ~= '' then
    record[at + 1], record[at + 2], at = TURN.given, '1', at + 2
    call('SET', id_key(tt), 'a' .. digest)
    given[#given + 1] = tt
  end
  if task ~= '' then record[at + 1], record[at + 2], at = TURN.task, task, at + 2 end
  if turn.cancelled then
    record[at + 1], record[at + 2], at = TURN.cancelled, turn.cancelled, at + 2
    take_early(tt)
  end
  if turn.holds then record[at + 1], record[at + 2], at = TURN.holds, turn.holds, at + 2 end
  if turn.back then record[at + 1], record[at + 2], at = TURN.lane, turn.back, at + 2 end
  if turn.note then record[at + 1], record[at + 2], at = TURN.log, turn.note, at + 2 end
  if k < n then
    seq = seq + 1
    record[at + 1], record[at + 2], at = TURN.lane_place, seq, at + 2
  end
  if turn.word == 'DISPATCHED' then
    for i = 1, k do out[i] = ARGV[from + 12 + i] end
    for i = k + 1, #out do out[i] = nil end
    local fence = dispatch(queue, tt, meta, 0, 0, 0, out)
    record[at + 1], record[at + 2], at = TURN.fence, fence, at + 2
    if k == n and not turn.holds then
      record[at + 1], at = TURN.fresh, at + 2
      record[at] = 'f=' .. fence .. ' n=' .. ARGV[from + 12] .. (digest ~= '' and ' gv=1 ts=' or ' ts=') .. now_text .. ' lg=' .. turn.note
    end
  end
  call('HSET', key, unpack(record, 1, at))
  if turn.word == 'ENDING' then
    local body = { meta = meta, first = 0, calls = { unpack(ARGV, from + 13, from + 12 + n) } }
    return lease_ending(tt, key, { done = 0 }, turn.reason, turn.upto or n, turn.info, now, ending_lease, body)
  end
  local t = #timers
  timers[t + 1], timers[t + 2] = ARGV[from + 7], 't:' .. tt
  local waits = turn.waits
  if waits then wait_for(waits, tt, seq, next_look(waits, now))
  elseif turn.word == 'LANED' then put_on_lane(tenant, agent, string.sub(tt, #tenant + 2), seq, turn.due) end
  local told = waits and { waits.row.name } or turn.word == 'DISPATCHED' and turn.told
  return told and #told > 0 and turn.word .. ' ' .. table.concat(told, ' ') or turn.word
end

-- Rule 11: everything is read and decided before anything is written, for a script error does not roll back.
local batch, names, records, tts, count = {}, {}, {}, {}, num(ARGV[at])
at = at + 1
-- Rule 19: the backlog drains even then, but in small bites.
local slices = room(tight)
if slices and count > slices then return { 'PRESSURE', now, slices } end
for i = 1, count do
  local tt, name, n = ARGV[at + 3], ARGV[at + 2], number(ARGV[at + 12])
  -- Its arguments stay where they are. What planning always finds out is named here, so that the table is made at its
  -- size; the rest comes with those that need it.
  local turn = { at = at, tenant = ARGV[at + 1], tt = tt, n = n, word = false, a = false, admitted = 0, note = false }
  batch[i], tts[i] = turn, tt
  if not names[name] then
    names[name], names[#names + 1] = true, name
  end
  if ARGV[at + 4] == '' then
    local r = #records
    records[r + 1], records[r + 2] = turn_key(tt), done_key(tt)
  end
  at = at + 13 + n
  if ARGV[at] == '0' then at = at + 1 else turn.debits, at = read_debits(at) end
end
-- Which entries are still pending: what was read together lies together, so mostly one command says so for all.
if count > 0 then
  local found = call('XPENDING', stream, GROUP, ARGV[batch[1].at], ARGV[batch[count].at], count)
  for i = 1, #found do held[found[i][1]] = true end
end
-- A minted id is new, but for accidents: one command says so for all.
any_known = #records > 0 and call('EXISTS', unpack(records)) > 0
cancelled_early = any_early(tts, early_ms, now)
load_agents(names)
if #counter_list > 0 then load_counters(now, epoch_ms, ending_lease) end
for i = 1, count do plan(batch[i]) end

local replies, acked = { 'OK', now }, {}
for i = 1, count do
  local turn = batch[i]
  if turn.a then
    replies[i + 2] = write(turn)
    acked[#acked + 1] = ARGV[turn.at]
  else
    replies[i + 2] = turn.word
    if turn.word == 'DUPLICATE' then acked[#acked + 1] = ARGV[turn.at] end
  end
end
if seq > last_seq then call('HSET', META, 'seq', seq) end
for key, task in pairs(tasks) do
  if task then call('HSET', key, TURN.budget_used, task.used) end
end
use_inboxes(claimed, reply_retain)
save_agents()
save_tenants()
save_counters()
arm(timers)
if #given > 0 then call('HDEL', QUEUED, unpack(given)) end
end_inbound(stream, acked)
return replies
