#!lua flags=allow-oom
-- settle: commits results with their audit; ends the slice, and the turn with one reply (rules 3, 4, 6).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 retain ms · 3 dedupe_for ms · 4 reply retain ms · 5 audit_max entries ·
--       6 count · 7 whether audit entries say how their calls were admitted ('1' or ''), then per item: tenant ·
--       tenant:turn · fence · queue ('' for an ending) · inbox or '' · the tenant's turn or
--       task that may wait for this one's end, or '' · '1' where this is the end of a task that failed · the whole reply, where this slice was the whole turn, or '' ·
--       results; then, where there is a whole reply, per result: audit JSON or ''; else: first position · head ·
--       messages open or '' · messages close · audits ('1' or '') · what the calls' ends do to facts, or '' (per change,
--       with blanks between: position · tenant:session · S s C c as in change_fact, or . for none · fact · ms that it is
--       kept), and per result:
--       result JSON · message JSON or '' · audit JSON or ''
-- reply per item: DONE (the turn has ended) · LANED (it has calls left) · OK (the slice goes on) · CANCELLED (goes
--       on, but should not) · ALREADY (these results were in) · STALE (the fence is
--       another's) · GAP (earlier results of the slice are missing)
-- effect XADD audit, replies; HSET facts; HSET turn or SET done and DEL turn; XACK; ZADD lane and timers; ZREM under, HSET cascades;
--       of a task, HINCRBY its parent's budget_used
local ARGV, unpack, find = ARGV, unpack, string.find
local now, redis_ms, tight = clock(ARGV[1])
-- They stay texts: Redis would have to write each number out again.
local retain, dedupe, reply_retain = ARGV[2], ARGV[3], ARGV[4]
local now_text = string.format('%d', now)
-- Turns that end in this batch: their live records and timers go together when it is done.
local acked, gone, records, ended = {}, {}, {}, {}

-- Rule 4: whether a slice is the one that is out.
local function is_ours(in_force, fence, tt) return in_force == fence and not ended[tt] end

local function turn_of(tenant, tt) return string.sub(tt, #tenant + 2) end

local function acknowledge(queue, fence)
  if queue == '' then return end
  local entries = acked[queue]
  if not entries then
    entries = {}
    acked[queue] = entries
  end
  entries[#entries + 1] = fence
  return true
end

-- All results of a turn in call order: those of earlier commits from the record, then these.
local function all_results(item, key, rec, prefix, mine)
  if rec.done == 0 then return #mine == 1 and mine[1] or table.concat(mine, ',') end
  local fields = {}
  for i = 0, rec.done - 1 do fields[i + 1] = prefix .. i end
  local results = call('HMGET', key, unpack(fields))
  for i = 1, #mine do results[#results + 1] = mine[i] end
  return table.concat(results, ',')
end

-- Why a turn was cancelled, in a shape that blanks and line ends cannot break.
local function why(cancelled)
  if not cancelled then return '' end
  return ' cx=' .. string.gsub(cancelled, '[%c%% ]', function(c) return string.format('%%%02X', string.byte(c)) end)
end

-- What a finished record says before the reply: the words are those of `records/finished.rs`.
local function trace_of(item, key, rec)
  local crashes, retries, end_reason, meta
  if rec.has_history then
    crashes, retries, end_reason, meta = unpack(call('HMGET', key, TURN.crashes, TURN.retries, TURN.end_reason, TURN.meta))
  end
  -- The id may be given to another turn when this record is forgotten: whoever knows this one by a claim must not take that
  -- for it.
  local digest = meta and string.match(meta, '"dg":"(%x+)"')
  return 'f=' .. item.fence .. ' ts=' .. rec.admitted_ms .. ' end=' .. now_text .. ' lg=' .. (rec.log or '')
    .. ' cr=' .. (crashes or 0) .. ' rt=' .. (retries or 0) .. ' er=' .. (end_reason or '') .. why(rec.cancelled) .. (digest and ' dg=' .. digest or '') .. '\n'
end

-- A reply of many results is joined by Redis, in its record: Lua would make the whole of it several times over, and
-- hash every byte of it each time.
local function join_long(item, key, rec, done, trace)
  local function append(text) call('APPEND', done, text) end
  local function append_all(prefix, mine)
    local separator = false
    local function add(text)
      if separator then append(',') end
      append(text)
      separator = true
    end
    for from = 0, rec.done - 1, 32 do
      local fields = {}
      for i = from, math.min(from + 31, rec.done - 1) do fields[#fields + 1] = prefix .. i end
      for _, text in ipairs(call('HMGET', key, unpack(fields))) do add(text) end
    end
    for i = 1, #mine do add(mine[i]) end
  end
  call('SET', done, trace, 'PX', retain)
  append(item.head)
  append_all(TURN.result, item.results)
  append(']')
  if item.open ~= '' then
    append(',"messages":' .. item.open)
    append_all(TURN.message, item.messages)
    append(item.close)
  end
  if item.audits ~= '' then
    append(',"tool_call_audits":[')
    append_all(TURN.audit, item.audit)
    append(']')
  end
  append('}')
  return call('GETRANGE', done, #trace, -1)
end

-- The reply of few results, joined at once.
local function join_short(item, key, rec)
  local messages, audits = '', ''
  if item.open ~= '' then
    messages = ',"messages":' .. item.open .. all_results(item, key, rec, TURN.message, item.messages) .. item.close
  end
  if item.audits ~= '' then
    audits = ',"tool_call_audits":[' .. all_results(item, key, rec, TURN.audit, item.audit) .. ']'
  end
  return item.head .. all_results(item, key, rec, TURN.result, item.results) .. ']' .. messages .. audits .. '}'
end

local function is_long(item, rec)
  if rec.done + #item.results > 8 then return true end
  local bytes = 0
  for i = 1, #item.results do bytes = bytes + #item.results[i] + #item.messages[i] end
  return bytes > 16384
end

-- Whoever waits for this turn goes on now (see `wait`). What is there under its name may be anything (rule 18).
local function wake(tenant, tt, wakes)
  local waiter = tenant .. ':' .. wakes
  local awaits = redis.pcall('HGET', P .. 'turn:' .. waiter, TURN.awaits)
  if awaits == turn_of(tenant, tt) then call('ZADD', TIMERS, 'LT', now, 't:' .. waiter) end
end

-- What is left of every ending: nobody looks at the turn again.
local function forget(tenant, tt, fence, key, wakes, bytes)
  ended[tt] = fence
  local n = #gone + 1
  gone[n], records[n] = 't:' .. tt, key
  local t = tenant_of(tenant)
  t.unfinished, t.bytes = t.unfinished - 1, t.bytes - (num(bytes or 0) or 0)
  if wakes ~= '' then wake(tenant, tt, wakes) end
  if wakes ~= '' then redis.pcall('ZREM', under_key(tenant .. ':' .. wakes), turn_of(tenant, tt)) end
  return 'DONE'
end

-- A given id says that its turn has ended.
local function end_id(tt)
  local key = P .. 'id:' .. tt
  call('SET', key, 'e' .. string.sub(call('GET', key) or 'e', 2), 'PX', dedupe)
end

-- A task's head begins with its id (see the reply's frame).
local function is_task(item) return string.sub(item.whole or item.head, 1, 10) == '{"task_id"' end

-- What a turn or task has begun that is under way ends with it, but for a task that ended well. Of one that ended well, whoever
-- ends its parent still finds it there, and what it has begun.
local function leave_below(item, key, rec)
  local is_of_task = is_task(item)
  if not is_of_task or item.failed then
    end_below(item.tt, rec.cancelled and 'its parent was cancelled: ' .. rec.cancelled
      or is_of_task and 'the task that began it has failed' or 'the call that waited for it has ended', now)
  elseif call('EXISTS', under_key(item.tt)) == 1 then
    return
  end
  local parent = is_of_task and call('HGET', key, TURN.parent)
  if parent then redis.pcall('ZREM', under_key(item.tenant .. ':' .. parent), turn_of(item.tenant, item.tt)) end
end

-- What a task leaves of its budget is its parent's again: once, for its record goes in this script. A parent that has
-- ended has no use for it. What is there under its name may be anything (rule 18).
local function give_back(item, key)
  local parent, budget, used = unpack(call('HMGET', key, TURN.parent, TURN.budget, TURN.budget_used))
  local left = parent and num(budget or 0) - num(used or 0) or 0
  if left <= 0 then return end
  local above = turn_key(item.tenant .. ':' .. parent)
  local carved = redis.pcall('HGET', above, TURN.budget_used)
  if type(carved) == 'string' then redis.pcall('HINCRBY', above, TURN.budget_used, -math.min(left, num(carved) or 0)) end
end

-- The one ending of every turn: reply, finished record, no timer, no live record.
local function end_turn(item, key, rec)
  local done, trace = done_key(item.tt), trace_of(item, key, rec)
  local whole = item.whole
  local long = not whole and is_long(item, rec)
  local text = whole or long and join_long(item, key, rec, done, trace) or join_short(item, key, rec)
  local told = reply_to(item.tenant, item.inbox, text)
  if tight and told and not is_task(item) then
    -- Memory is short: a turn's results are in its inbox, and its record does without. A task's are asked for by agents.
    call('SET', done, trace, 'PX', retain)
  elseif not long then
    call('SET', done, trace .. text, 'PX', retain)
  end
  leave_below(item, key, rec)
  if is_task(item) then give_back(item, key) end
  if rec.given then end_id(item.tt) end
  return forget(item.tenant, item.tt, item.fence, key, item.wakes, rec.bytes)
end

-- Keeps results until the turn ends.
local function keep(item, key, rec)
  local fields, bytes = { TURN.done, rec.done + #item.results, TURN.fresh, '' }, 0
  local function put(name, value)
    fields[#fields + 1], fields[#fields + 2], bytes = name, value, bytes + #value
  end
  for i = 1, #item.results do
    local position = rec.done + i - 1
    put(TURN.result .. position, item.results[i])
    if item.open ~= '' then put(TURN.message .. position, item.messages[i]) end
    if item.audits ~= '' then put(TURN.audit .. position, item.audit[i]) end
  end
  local t = tenant_of(item.tenant)
  t.bytes = t.bytes + bytes
  put(TURN.bytes, string.format('%.0f', (num(rec.bytes or 0) or 0) + bytes))
  call('HSET', key, unpack(fields))
  -- The tries were those of a call that has its result now.
  if rec.has_history then call('HDEL', key, TURN.attempts) end
end

-- The slice has ended and the turn has calls left: back on its lane, whose timer is armed.
local function back_on_lane(item, key, rec)
  call('HDEL', key, TURN.fence, TURN.begun, TURN.started, TURN.end_reason, TURN.end_upto, TURN.end_info, TURN.end_ms, TURN.attempts,
    TURN.attempts_at, TURN.crashes, TURN.lost, TURN.waited)
  call('HSET', key, TURN.settled_fence, item.fence)
  local agent, lane_place, deadline, lane = unpack(call('HMGET', key, TURN.agent, TURN.lane_place, TURN.deadline_ms, TURN.lane))
  if lane then
    -- A limit had cut the slice short: its agent's other turns need not wait for it.
    call('ZADD', P .. 'lane:' .. lane, lane_place, item.tt)
    call('ZADD', TIMERS, 'LT', now, 'l:' .. lane)
  else
    local tick_end = budget_of(item.tenant .. ':' .. agent).tick_end
    put_on_lane(item.tenant, agent, turn_of(item.tenant, item.tt), lane_place, math.max(tick_end, now))
  end
  if rec.cancelled then call('ZADD', TIMERS, now, 't:' .. item.tt) else call('ZADD', TIMERS, deadline, 't:' .. item.tt) end
  return 'LANED'
end

-- Whose fence it was when it is not ours: our own earlier settle, or somebody else's.
local function not_ours(item, key, fence)
  if item.queue ~= '' and is_slice_of(item.queue, item.fence, item.tt) then acknowledge(item.queue, item.fence) end
  if ended[item.tt] then return ended[item.tt] == item.fence and 'ALREADY' or 'STALE' end
  if call('HGET', key, TURN.settled_fence) == item.fence then return 'ALREADY' end
  local done = not fence and call('GETRANGE', done_key(item.tt), 0, #item.fence + 2)
  if done and done == 'f=' .. item.fence .. ' ' then return 'ALREADY' end
  return 'STALE'
end

-- A repeated commit may overlap an earlier one: what is in already is left out. Answers a word where nothing is new.
local function catch_up(item, done)
  local skip = done - item.first
  if skip < 0 then return 'GAP' end
  if skip > 0 and skip >= #item.audit then return 'ALREADY' end
  for _ = 1, skip do
    table.remove(item.results, 1)
    table.remove(item.messages, 1)
    table.remove(item.audit, 1)
  end
end

-- What a worker said of a call that Redis had lost is its result, whatever else an ending would tell (rule 8).
local ran_ms
local function recall(item, key, done)
  ran_ms = ran_ms or num(call('HGET', META, 'ran_ms') or 0)
  if now >= ran_ms then return end
  local digest = string.match(call('HGET', key, TURN.meta) or '', '"dg":"(%x+)"')
  for i = 1, digest and #item.results or 0 do
    local mark = mark_of(item.tt, done + i - 1, digest)
    if mark and mark.result then
      item.results[i], item.messages[i], item.audit[i] = mark.result, mark.message, mark.audit
    end
  end
end

-- The first entry of a batch keeps the bound of all. By age they go when the house is kept.
local is_audit_bounded, says_admission, AUDIT = false, ARGV[7] == '1', P .. 'audit'
local function write_audit(text, admitted)
  if admitted then
    call('XADD', AUDIT, 'MAXLEN', '~', ARGV[5], '*', 'audit', text, 'admitted', admitted)
  elseif is_audit_bounded then
    call('XADD', AUDIT, '*', 'audit', text)
  else
    call('XADD', AUDIT, 'MAXLEN', '~', ARGV[5], '*', 'audit', text)
    is_audit_bounded = true
  end
end

-- Auditors are told by the shard's clock when calls were over: those of a slice that gives places back with them, those that
-- may have changed facts, and those that schedulers end, which was decided before; and when places were given back before,
-- and taken again. `meta` is the last of an entry.
local function say_when(item, key, holds, is_last, log)
  -- A record may hold anything (rule 18), and an entry has to stay JSON.
  local ended = item.queue == '' and string.match(call('HGET', key, TURN.end_ms) or '', '^%d+$')
  local over = ended or (item.facts ~= '' or holds and is_last) and now_text
  local more, places = over and ',"ended_ms":' .. over or '', {}
  local since_admission = string.match(log or '', '^.*;A[^;]*(.*)$') or log or ''
  for note in string.gmatch(since_admission, ';([GH]%d+,%d+)') do places[#places + 1] = note end
  if #places > 0 then more = more .. ',"places":"' .. table.concat(places, ';') .. '"' end
  for i = 1, more ~= '' and #item.audit or 0 do
    local text = item.audit[i]
    if string.sub(text, -2) == '}}' then item.audit[i] = string.sub(text, 1, -3) .. more .. '}}' end
  end
end

-- What the ends of the calls [from, upto) do to the facts of their sessions, and who entered is under way no longer. Of one
-- of which nobody says it, it may have done all that it could.
local function change_facts(item, key, from, upto)
  local turn = turn_of(item.tenant, item.tt)
  local at, session = string.match(call('HGET', key, TURN.entered) or '', '^(%d+) (.+)$')
  local left = {}
  for position, of, change, fact, kept in string.gmatch(item.facts, '(%d+) (%S+) (%S) (%S+) (%d+)') do
    if num(position) >= from and num(position) < upto then
      local by = turn .. '/' .. position
      if change ~= '.' then change_fact(of, change, fact, num(kept), by, now) end
      left[of .. ' ' .. by] = { of, by }
      if position == at then at = nil end
    end
  end
  for _, one in pairs(left) do leave_session(one[1], one[2], now) end
  if at and num(at) >= from and num(at) < upto then leave_unsaid(session, turn .. '/' .. at, now) end
end

-- The note of the last admission in a turn's log, that of the slice which is out, with what it says of its task, of limits and
-- of the workers' slots; and behind it those of the first waits since the one before.
local function last_admission(log) -- rarely
  local before, note, behind = string.match(';' .. (log or ''), '^(.*);(A[^;]*)(.*)$')
  if not note then return nil end
  for more in string.gmatch(behind, ';([DPT][^;]*)') do note = note .. ';' .. more end
  local waits = 0
  for wait in string.gmatch(string.match(before, '^.*;A[^;]*(.*)$') or before, ';([LW][^;]*)') do
    waits = waits + 1
    if waits <= 4 then note = note .. ';' .. wait end
  end
  return note
end

local function settle(item)
  local key = turn_key(item.tt)
  local fence, calls, admitted, done, cancelled, given, admitted_ms, log, has_history, holds, bytes = unpack(call('HMGET', key,
    TURN.fence, TURN.calls, TURN.admitted, TURN.done, TURN.cancelled, TURN.given, TURN.admitted_ms, TURN.log,
    TURN.has_history, TURN.holds, TURN.bytes))
  if not is_ours(fence, item.fence, item.tt) then return not_ours(item, key, fence) end
  local rec = {
    calls = num(calls), admitted = num(admitted), done = num(done or 0), cancelled = cancelled, given = given,
    admitted_ms = admitted_ms, log = log, has_history = has_history, bytes = bytes,
  }
  local word = catch_up(item, rec.done)
  if word then return word end
  if item.queue == '' then recall(item, key, rec.done) end
  local upto = rec.done + #item.audit
  local admission = says_admission and last_admission(rec.log)
  if says_admission then say_when(item, key, holds, upto >= rec.admitted or item.whole, rec.log) end
  for i = 1, #item.audit do
    -- What ends without having been admitted says nothing of it.
    if item.audit[i] ~= '' then write_audit(item.audit[i], rec.done + i <= rec.admitted and admission or nil) end
  end
  -- What is under the name of a session may be anything: that costs the facts alone (rule 18).
  if item.facts ~= '' or rec.has_history then alone(change_facts, item, key, rec.done, upto) end
  if upto < rec.admitted and not item.whole then
    keep(item, key, rec)
    return rec.cancelled and 'CANCELLED' or 'OK'
  end
  if acknowledge(item.queue, item.fence) then
    local t = tenant_of(item.tenant)
    t.out = t.out - 1
    free_places(item.tt, key, holds, now)
  end
  if upto >= rec.calls or item.whole then return end_turn(item, key, rec) end
  keep(item, key, rec)
  return back_on_lane(item, key, rec)
end

-- A slice that is all of its turn, to which nothing has happened since it was dispatched: most are. The record says so in
-- one field (see `write` in admit), which begins with the fence and the number of calls. Answers nil where it is not so,
-- and nothing is written then. Its audit is in ARGV from `first` on. This is the hottest loop: it makes no table.
local FRESH_END, FRESH_CALLS = ' end=' .. now_text .. ' cr=0 rt=0 er=\n', {}
local function settle_fresh(tenant, tt, fence, queue, inbox, wakes, whole, first, count)
  local key = P .. 'turn:' .. tt
  local found = call('HMGET', key, TURN.fence, TURN.fresh, TURN.bytes)
  local fresh, behind = found[2], #fence + 3
  if not (fresh and is_ours(found[1], fence, tt)) or tight or find(fresh, fence, 3, true) ~= 3 then return nil end
  local calls = FRESH_CALLS[count] or ' n=' .. count .. ' '
  if find(fresh, calls, behind, true) ~= behind then return nil end
  FRESH_CALLS[count] = calls
  local _, log = nil, nil
  if says_admission then _, log = find(fresh, ' lg=', behind, true) end
  local admission = log and string.sub(fresh, log + 1)
  for i = first, first + count - 1 do
    if ARGV[i] ~= '' then write_audit(ARGV[i], admission) end
  end
  acknowledge(queue, fence)
  local t = tenant_of(tenant)
  t.out = t.out - 1
  reply_to(tenant, inbox, whole)
  call('SET', P .. 'done:' .. tt, fresh .. FRESH_END .. whole, 'PX', retain)
  behind = behind + #calls
  if string.byte(fresh, behind) == 103 then end_id(tt) end
  return forget(tenant, tt, fence, key, wakes, found[3])
end

-- One that something has happened to, or that is a part of its turn.
local function settle_item(at, n) -- rarely
  local item = { tenant = ARGV[at], tt = ARGV[at + 1], fence = ARGV[at + 2], queue = ARGV[at + 3], inbox = ARGV[at + 4],
    wakes = ARGV[at + 5], failed = ARGV[at + 6] ~= '', whole = ARGV[at + 7] ~= '' and ARGV[at + 7], facts = '', results = {},
    messages = {}, audit = {} }
  at = at + 9
  if item.whole then
    item.first = 0
    for i = 1, n do item.audit[i] = ARGV[at + i - 1] end
    return settle(item)
  end
  item.first, item.head, item.open, item.close, item.audits = num(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  item.facts = ARGV[at + 5]
  at = at + 6
  for r = 1, n do
    item.results[r], item.messages[r], item.audit[r] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    at = at + 3
  end
  return settle(item)
end

local replies, counts, at = {}, { ['1'] = 1 }, 8
for i = 1, num(ARGV[6]) do
  local tenant, tt, fence, queue, inbox, wakes, failed_task, whole, n = unpack(ARGV, at, at + 8)
  n = counts[n] or num(n)
  -- Rule 18, without a detour.
  local done, word = true, nil
  if whole ~= '' and failed_task == '' then
    done, word = pcall(settle_fresh, tenant, tt, fence, queue, inbox, wakes, whole, at + 9, n)
  end
  if done and not word then done, word = pcall(settle_item, at, n) end
  replies[i] = done and word or failed(word)
  at = at + (whole ~= '' and 9 + n or 15 + 3 * n)
end
for from = 1, #gone, 1000 do
  local upto = math.min(from + 999, #gone)
  call('ZREM', TIMERS, unpack(gone, from, upto))
  call('DEL', unpack(records, from, upto))
end
save_inboxes(now_text, redis_ms, reply_retain, tight)
save_tenants()
for queue, entries in pairs(acked) do ack_and_trim(P .. queue, entries) end
return replies
