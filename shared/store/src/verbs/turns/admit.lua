#!lua
-- admit: decides a batch of inbound turns: debits every budget of their chains and dispatches what fits.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 generations decided by (see outdated) · 3 ending lease ms · 4 tenant_turns_max · 5 tenant_ready_max ·
--       6 inbox_unread_max · 7 inboxes_max per tenant · 8 reply retain ms · 9 tenant_bytes_max · 10 policies, then per policy
--       (see read_policies) 7 values; rows of limits, and the counters that turns debit (see read_rows); then the count of turns,
--       and per turn: entry · tenant · tenant:agent · tenant:turn · digest ('' where the id was minted) · policy number ·
--       queue · deadline ms · stagger ms · inbox or '' · task or '' · meta · calls, calls… · what they debit (see
--       read_debits); at last, what Redis called itself when the caller connected, or ''
-- reply {OK, now, per turn…} where a turn is DISPATCHED · LANED (behind either, the limits that it met: those in whose
--       shadow it was, or the one that it waits for) · DUPLICATE · CONFLICT · REFUSED <code> · LATER (it
--       ends when its timer says so) or {an ending, see lease_ending}; or {POLICY_STALE, now} · {TENANTS_STALE, now} ·
--       {DAY_STALE, now} · {PRESSURE, now, how many turns may come now} (memory is short, see room): nothing written
-- effect XADD ready or ZADD lane, HSET turn and counters, ZADD timers and under; acknowledges all but CONFLICT and REFUSED, which the
--       caller rejects with a reply
local ARGV, unpack = ARGV, unpack
local now, _, tight, meta = clock(ARGV[1], 'run_id', 'epoch_ms', 'ran_ms', 'policy_gen', 'seq', 'tenants_gen', 'early_ms',
  'memory_max')
local epoch_ms = epoch(now, ARGV[#ARGV], meta)
local policy_gen, last_seq, tenants_gen, early_ms, memory_max = unpack(meta, 7, 11)
local stale = outdated(policy_gen, tenants_gen, ARGV[2])
if stale then return { stale, now } end
local ending_lease, turns_max, ready_max = num(ARGV[3]), num(ARGV[4]), num(ARGV[5])
local inbox_max, inboxes_max, reply_retain = num(ARGV[6]), num(ARGV[7]), num(ARGV[8])
local bytes_max = tenant_bytes_max(ARGV[9], memory_max)
local policies, at = read_policies(11, num(ARGV[10]))
at = read_rows(at)
if day_is_stale(policies, now) or rows_are_stale(now) then return { 'DAY_STALE', now } end

last_seq = num(last_seq or 0)
local seq, now_text = last_seq, string.format('%d', now)
local tasks, boxes, claimed, seen, timers, held, stream = {}, {}, {}, {}, {}, {}, P .. 'turns'
-- Turns whose ids `submit` has remembered, and those of them that are admitted.
local queued, given = {}, {}
local any_known, cancelled_early

-- What is known of the batch's turns, by their number: where their arguments begin, and where what they debit does; once
-- they are planned, their words, and of those that are to be written how many calls go out and what the log says. What only
-- unusual turns have is in `rare`: a table for each turn costs more than what else a usual one needs.
local places, debits_of, words, admitted, notes, rare, sizes, NOTHING = {}, {}, {}, {}, {}, {}, {}, {}

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

-- The action budget of the task that a turn runs under; nil where there is no such task, or it is over.
local function task_of(tenant, task)
  local key = P .. 'turn:' .. tenant .. ':' .. task
  if tasks[key] == nil then
    local budget, used, cancelled, fence = unpack(call('HMGET', key, TURN.budget, TURN.budget_used, TURN.cancelled, TURN.fence))
    local ends = cancelled or fence and string.sub(fence, 1, 2) == 's:'
    tasks[key] = budget and not ends and { max = num(budget), used = num(used or 0) } or false
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

-- Of an inner turn, the name of the turn whose call has made it; else nil. And whether that has ended, or is over.
local outers = {}
local function outer_of(tenant, tt)
  if not string.find(tt, '.call-', 1, true) then return nil end
  local turn = string.match(tt, '^[^:]+:(.+)%.%d+%.call%-%d+$')
  local outer = turn and tenant .. ':' .. turn
  if outer and outers[outer] == nil then outers[outer] = is_over(outer) ~= false end
  return outer, outers[outer]
end

-- DUPLICATE, CONFLICT or nil. The inbound entry is the fence: a scheduler that slept while reap put the entry back
-- must not admit it a second time, however long ago the first turn has ended and its record has gone.
local function known(tt, entry, digest)
  if not (held[entry] or is_open(stream, entry)) then return 'DUPLICATE' end
  if seen[tt] then return seen[tt] == digest and 'DUPLICATE' or 'CONFLICT' end
  -- A minted id that a producer gave to another turn is that one's, by whatever accident: this is no duplicate of it.
  if digest == '' then
    if not any_known or call('EXISTS', P .. 'turn:' .. tt, P .. 'done:' .. tt) == 0 then return nil end
    return call('EXISTS', P .. 'id:' .. tt) == 1 and 'CONFLICT' or 'DUPLICATE'
  end
  local id = call('GET', P .. 'id:' .. tt)
  -- Somebody's minted id: it cannot be given to another turn.
  if not id then return any_known and call('EXISTS', P .. 'turn:' .. tt, P .. 'done:' .. tt) > 0 and 'CONFLICT' or nil end
  if string.sub(id, 2) ~= digest then return 'CONFLICT' end
  if string.sub(id, 1, 1) ~= 'q' then return 'DUPLICATE' end
  queued[tt] = true
end

-- A limit stops the turn's first call: it ends, and those behind it that the same counter stops, or the turn waits.
local function stopped(more, n, stop)
  local c = stop.c
  more.back = name_of(c)
  local ends, reason, info = refusal_of(stop, n, epoch_ms)
  if reason and not c.first then
    more.reason, more.info, more.upto = reason, info, ends
    return 'ENDING'
  end
  more.waits, c.first = c, c.first or 0
  return 'LANED', wait_note(now_text, c)
end

-- How many of a turn's first `k` calls its limits let go, which are debited then; or 0, and what stops the first one.
local function limited(more, tt, from, k)
  more.told = { first = 0 }
  local stop = behind(from)
  if stop then return 0, stop end
  k, stop = fit(from, k, epoch_ms, more.told)
  if k > 0 then
    more.holds = debit_counters(tt, from, k, now)
    if stop then more.back = name_of(stop.c) end
  end
  return k, stop
end

local function end_for(more, reason, info)
  more.reason, more.info = reason, info
  return 'ENDING'
end

-- Decides about a turn of which not all calls may go at once, or that is unusual otherwise. Answers its word, and what
-- the log says of it; or nil, and how many calls may go. Of a wait on its agent's lane that is since when, for turns that came
-- before (l), the tick (t), the day (d) or room for another slice (r), and until when at least.
local function plan_unusual(i, tt, t, a, policy, task, n, k, day, resets, deadline, orphaned) -- rarely
  local more, from, stop = {}, debits_of[i], nil
  rare[i] = more
  if cancelled_early then more.cancelled = why_early(tt) end
  if not more.cancelled and orphaned then more.cancelled = 'the call that began it is over' end
  if more.cancelled then return end_for(more, 'cancelled', now) end
  if deadline <= now then return end_for(more, 'expired', deadline) end
  if a.waiting then
    more.due = day <= 0 and not policy.reject and resets or a.tick_end
    return 'LANED', string.format('W%s,l,%.0f', now_text, more.due)
  end
  local left = task and task.max - task.used or n
  if left <= 0 then return end_for(more, 'task_budget_reached', task.max) end
  if day <= 0 and policy.reject then return end_for(more, 'daily_cap_reached', resets) end
  if left < k then k = left end
  if k > 0 and from then k, stop = limited(more, tt, from, k) end
  if k <= 0 and stop then return stopped(more, n, stop) end
  if k <= 0 then
    more.due, a.waiting = day <= 0 and resets or a.tick_end, true
    local cause = day <= 0 and 'd' or t.out >= ready_max and 'r' or 't'
    return 'LANED', string.format('W%s,%s,%.0f', now_text, cause, more.due)
  end
  if task then
    task.used = task.used + k
    more.note = task_note(task.used, task.max)
  end
  if more.holds then more.note = (more.note or '') .. slots_note(from) end
  return nil, k
end

-- Decides about one turn; writes nothing, but the counters in memory. Answers its word, and what the log says of it.
local function plan(i)
  local at = places[i]
  local entry, tenant, name, tt, digest, policy_number, _, deadline, stagger, inbox, task_id, _, count = unpack(ARGV, at, at + 12)
  local word = known(tt, entry, digest)
  if word then return word end
  local t, box, task = tenant_of(tenant), box_of(tenant, inbox), nil
  local refusal = box ~= 'new' and box
  if task_id ~= '' then
    task = task_of(tenant, task_id)
    if not task then refusal = 'unknown_task' end
  end
  if t.unfinished >= turns_max then refusal = 'tenant_queue_full' end
  if t.bytes + sizes[i] > bytes_max then refusal = 'tenant_queue_full' end
  if refusal then return 'REFUSED ' .. refusal end
  seen[tt] = digest
  if box == 'new' then claim(tenant, inbox) end
  local a, policy, n = agent_of(name, now), policies[number(policy_number)], number(count)
  deadline = number(deadline)
  roll(a, t, policy, stagger, now)
  t.unfinished, t.bytes, admitted[i] = t.unfinished + 1, t.bytes + sizes[i], 0
  local day, resets = day_left(a, t, policy)
  local k, tick = n, tick_left(a, policy, epoch_ms)
  if tick < k then k = tick end
  if day < k then k = day end
  if t.out >= ready_max then k = 0 end
  local from = debits_of[i]
  local _, orphaned = outer_of(tenant, tt)
  if k < n or k <= 0 or a.waiting or deadline <= now or task or cancelled_early or orphaned or from and not debit_all(from, n, epoch_ms) then
    local stops, more = plan_unusual(i, tt, t, a, policy, task, n, k, day, resets, deadline, orphaned)
    if stops then return stops, more end
    k = more
  end
  debit(a, t, k)
  t.out, admitted[i] = t.out + 1, k
  local note, more = admission_note(now_text, k, a, policy), rare[i]
  if tells_debits then note = note .. debits_note(from, k) end
  return 'DISPATCHED', more and more.note and note .. more.note or note
end

-- What `write` does for turns that are not dispatched: they end, or wait.
local function hold_up(from, more, word, place) -- rarely
  local tenant, name, tt, meta, n = ARGV[from + 1], ARGV[from + 2], ARGV[from + 3], ARGV[from + 11], number(ARGV[from + 12])
  if more.cancelled then take_early(tt) end
  if word == 'ENDING' then
    local body = { meta = meta, first = 0, calls = { unpack(ARGV, from + 13, from + 12 + n) } }
    return lease_ending(tt, turn_key(tt), { done = 0 }, more.reason, more.upto or n, more.info, now, ending_lease, body)
  end
  local waits = more.waits
  if not waits then
    put_on_lane(tenant, string.sub(name, #tenant + 2), string.sub(tt, #tenant + 2), place, more.due)
    return word
  end
  wait_for(waits, tt, place, next_look(waits, now))
  return word .. ' ' .. waits.row.name
end

-- The record of a turn, and where its calls wait. One table serves all records, and one all slices: making them costs
-- more than filling them.
local record = { TURN.agent, '', TURN.queue, '', TURN.calls, '', TURN.admitted, '', TURN.deadline_ms, '', TURN.admitted_ms,
  now_text, TURN.meta, '', TURN.bytes, '' }
local out, call_fields = {}, {}
local function write(i)
  local from, word, note, k, more, at = places[i], words[i], notes[i], admitted[i], rare[i] or NOTHING, 16
  local _, tenant, name, tt, digest, _, queue, deadline, _, _, task, meta, count = unpack(ARGV, from, from + 12)
  local n = number(count)
  record[2], record[4], record[6], record[8] = string.sub(name, #tenant + 2), queue, count, k == n and count or k
  record[10], record[14], record[16] = deadline, meta, sizes[i]
  -- Rule 21: the record answers without the entry, whatever becomes of that.
  for c = 1, n do
    local field = call_fields[c] or TURN.call .. (c - 1)
    call_fields[c], record[at + 1], record[at + 2], at = field, field, ARGV[from + 12 + c], at + 2
  end
  if digest ~= '' then
    record[at + 1], record[at + 2], at = TURN.given, '1', at + 2
    call('SET', P .. 'id:' .. tt, 'a' .. digest)
    if queued[tt] then given[#given + 1] = tt end
  end
  if task ~= '' then record[at + 1], record[at + 2], at = TURN.task, task, at + 2 end
  if more.cancelled then record[at + 1], record[at + 2], at = TURN.cancelled, more.cancelled, at + 2 end
  if more.holds then record[at + 1], record[at + 2], at = TURN.holds, more.holds, at + 2 end
  if more.back then record[at + 1], record[at + 2], at = TURN.lane, more.back, at + 2 end
  if note then record[at + 1], record[at + 2], at = TURN.log, note, at + 2 end
  if k < n then
    seq = seq + 1
    record[at + 1], record[at + 2], at = TURN.lane_place, seq, at + 2
  end
  if word == 'DISPATCHED' then
    for c = 1, k do out[c] = ARGV[from + 12 + c] end
    for c = k + 1, #out do out[c] = nil end
    local shades = more.told and more.told.notes
    local fence = dispatch(queue, tt, meta, 0, 0, 0, out, nil, nil, shades)
    if shades then record[at + 1], record[at + 2], at = TURN.shades, shades, at + 2 end
    record[at + 1], record[at + 2], at = TURN.fence, fence, at + 2
    if k == n and not more.holds then
      record[at + 1], at = TURN.fresh, at + 2
      record[at] = 'f=' .. fence .. ' n=' .. count .. (digest ~= '' and ' gv=1 ts=' or ' ts=') .. now_text .. ' lg=' .. note
    end
  end
  call('HSET', P .. 'turn:' .. tt, unpack(record, 1, at))
  if word ~= 'ENDING' then
    local outer = outer_of(tenant, tt)
    if outer then
      put_under(outer, string.sub(tt, #tenant + 2), now)
      -- Its end has to look at what it has begun (see settle).
      call('HSET', turn_key(outer), TURN.fresh, '')
    elseif task ~= '' then
      put_under(tenant .. ':' .. task, string.sub(tt, #tenant + 2), now)
    end
    local t = #timers
    timers[t + 1], timers[t + 2] = deadline, 't:' .. tt
  end
  if word ~= 'DISPATCHED' then return hold_up(from, more, word, seq) end
  return more.told and #more.told > 0 and word .. ' ' .. table.concat(more.told, ' ') or word
end

-- Rule 11: everything is read and decided before anything is written, for a script error does not roll back.
local names, records, tts, count = {}, {}, {}, num(ARGV[at])
at = at + 1
-- Rule 19: the backlog drains even then, but in small bites.
local slices = room(tight)
if slices and count > slices then return { 'PRESSURE', now, slices } end
for i = 1, count do
  -- The arguments stay where they are.
  local _, _, name, tt, _, _, _, _, _, _, _, meta, calls = unpack(ARGV, at, at + 12)
  places[i] = at
  if not names[name] then
    names[name], names[#names + 1] = true, name
  end
  local r = #records
  records[r + 1], records[r + 2] = P .. 'turn:' .. tt, P .. 'done:' .. tt
  local bytes = #meta
  for c = at + 13, at + 12 + number(calls) do bytes = bytes + #ARGV[c] end
  sizes[i], at = bytes, at + 13 + number(calls)
  if ARGV[at] == '' then at = at + 1 else debits_of[i], at = read_debits(at) end
end
-- Which entries are still pending: what was read together lies together, so mostly one command says so for all.
if count > 0 then
  local found = call('XPENDING', stream, GROUP, ARGV[places[1]], ARGV[places[count]], count)
  for i = 1, #found do held[found[i][1]] = true end
end
if num(early_ms or 0) > now then
  for i = 1, count do tts[i] = ARGV[places[i] + 3] end
end
cancelled_early = any_early(tts, early_ms, now)
-- An id is new, but for repetitions and accidents.
any_known = load_agents(names, records)
if #counter_list > 0 then load_counters(now, epoch_ms, ending_lease) end
for i = 1, count do words[i], notes[i] = plan(i) end

local replies, acked = { 'OK', now }, {}
for i = 1, count do
  local word = words[i]
  if admitted[i] then
    replies[i + 2] = write(i)
    acked[#acked + 1] = ARGV[places[i]]
  else
    replies[i + 2] = word
    if word == 'DUPLICATE' then acked[#acked + 1] = ARGV[places[i]] end
  end
end
if seq > last_seq then call('HSET', META, 'seq', seq) end
for key, task in pairs(tasks) do
  if task then call('HSET', key, TURN.budget_used, task.used) end
end
if next(claimed) then use_inboxes(claimed, reply_retain) end
save_agents()
save_tenants()
if #counter_list > 0 then save_counters() end
arm(timers)
if #given > 0 then call('HDEL', QUEUED, unpack(given)) end
end_inbound(stream, acked)
return replies
