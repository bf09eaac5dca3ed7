#!lua flags=allow-oom
-- settle: commits results with their audit; ends the slice, and the turn with one reply (rules 3, 4, 6).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 retain ms · 3 dedupe_for ms · 4 reply retain ms · 5 audit_max entries ·
--       6 count, then per item: tenant · turn · fence · queue ('' for an ending) · first position · inbox or '' ·
--       head · messages open or '' · messages close · audits ('1' or '') · the tenant's turn or task that may wait for
--       this one's end, or '' · results, then per result:
--       result JSON · message JSON or '' · audit JSON or ''
-- reply per item: DONE (the turn has ended) · LANED (it has calls left) · OK (the slice goes on) · CANCELLED (goes
--       on, but should not) · ALREADY (these results were in) · STALE (the fence is
--       another's) · GAP (earlier results of the slice are missing)
-- effect XADD audit, replies; HSET turn or SET done and DEL turn; XACK; ZADD lane and timers; of a task, HINCRBY its
--       parent's budget_used
local now, redis_ms, tight = clock(ARGV[1])
-- They stay texts: Redis would have to write each number out again.
local retain, dedupe, reply_retain = ARGV[2], ARGV[3], ARGV[4]
local now_text = tostring(now)
-- Turns that end in this batch: their live records and timers go together when it is done.
local acked, gone, records, ended = {}, {}, {}, {}

local function acknowledge(item)
  if item.queue == '' then return end
  local entries = acked[item.queue]
  if not entries then
    entries = {}
    acked[item.queue] = entries
  end
  entries[#entries + 1] = item.fence
  return true
end

-- All results of a turn in call order: those of earlier commits from the record, then these.
local function all_results(item, key, rec, prefix, mine)
  if rec.done == 0 then return #mine == 1 and mine[1] or table.concat(mine, ',') end
  local fields = {}
  for i = 0, rec.done - 1 do fields[i + 1] = prefix .. i end
  local earlier = call('HMGET', key, unpack(fields))
  for i = 1, #mine do earlier[#earlier + 1] = mine[i] end
  return table.concat(earlier, ',')
end

-- Why a turn was cancelled, in a shape that blanks and line ends cannot break.
local function why(cancelled)
  if not cancelled then return '' end
  return ' cx=' .. string.gsub(cancelled, '[%c%% ]', function(c) return string.format('%%%02X', string.byte(c)) end)
end

-- What a finished record says before the reply: the words are those of `records/finished.rs`.
local function trace_of(item, key, rec)
  local crashes, retries, end_reason
  if rec.has_history then
    crashes, retries, end_reason = unpack(call('HMGET', key, TURN.crashes, TURN.retries, TURN.end_reason))
  end
  return 'f=' .. item.fence .. ' ts=' .. rec.admitted_ms .. ' end=' .. now_text .. ' lg=' .. (rec.log or '')
    .. ' cr=' .. (crashes or 0) .. ' rt=' .. (retries or 0) .. ' er=' .. (end_reason or '') .. why(rec.cancelled) .. '\n'
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
local function wake(item)
  local waiter = item.tenant .. ':' .. item.wakes
  local awaits = redis.pcall('HGET', turn_key(waiter), TURN.awaits)
  if awaits == item.turn then call('ZADD', TIMERS, 'LT', now, 't:' .. waiter) end
end

-- A task's head begins with its id (see the reply's frame).
local function is_task(item) return string.sub(item.head, 1, 10) == '{"task_id"' end

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
  local long = is_long(item, rec)
  local text = long and join_long(item, key, rec, done, trace) or join_short(item, key, rec)
  local told = reply_to(item.tenant, item.inbox, text)
  if tight and told and not is_task(item) then
    -- Memory is short: a turn's results are in its inbox, and its record does without. A task's are asked for by agents.
    call('SET', done, trace, 'PX', retain)
  elseif not long then
    call('SET', done, trace .. text, 'PX', retain)
  end
  if is_task(item) then give_back(item, key) end
  if rec.given then call('SET', id_key(item.tt), 'e' .. string.sub(call('GET', id_key(item.tt)) or 'e', 2), 'PX', dedupe) end
  ended[item.tt] = item.fence
  gone[#gone + 1], records[#records + 1] = 't:' .. item.tt, key
  local t = tenant_of(item.tenant)
  t.unfinished = t.unfinished - 1
  if item.wakes ~= '' then wake(item) end
  return 'DONE'
end

-- Keeps results until the turn ends.
local function keep(item, key, rec)
  local fields = { TURN.done, rec.done + #item.results }
  local function put(name, value) fields[#fields + 1], fields[#fields + 2] = name, value end
  for i = 1, #item.results do
    local position = rec.done + i - 1
    put(TURN.result .. position, item.results[i])
    if item.open ~= '' then put(TURN.message .. position, item.messages[i]) end
    if item.audits ~= '' then put(TURN.audit .. position, item.audit[i]) end
  end
  call('HSET', key, unpack(fields))
  -- The tries were those of a call that has its result now.
  if rec.has_history then call('HDEL', key, TURN.attempts) end
end

-- The slice has ended and the turn has calls left: back on its lane, whose timer is armed.
local function back_on_lane(item, key, rec)
  call('HDEL', key, TURN.fence, TURN.begun, TURN.started, TURN.end_reason, TURN.end_upto, TURN.end_info, TURN.attempts,
    TURN.attempts_at, TURN.crashes, TURN.lost, TURN.waited)
  call('HSET', key, TURN.settled_fence, item.fence)
  local agent, lane_place, deadline, lane = unpack(call('HMGET', key, TURN.agent, TURN.lane_place, TURN.deadline_ms, TURN.lane))
  if lane then
    -- A limit had cut the slice short: its agent's other turns need not wait for it.
    call('ZADD', P .. 'lane:' .. lane, lane_place, item.tt)
    call('ZADD', TIMERS, 'LT', now, 'l:' .. lane)
  else
    local tick_end = budget_of(item.tenant .. ':' .. agent).tick_end
    put_on_lane(item.tenant, agent, item.turn, lane_place, math.max(tick_end, now))
  end
  if rec.cancelled then call('ZADD', TIMERS, now, 't:' .. item.tt) else call('ZADD', TIMERS, deadline, 't:' .. item.tt) end
  return 'LANED'
end

-- Whose fence it was when it is not ours: our own earlier settle, or somebody else's.
local function lost(item, key, fence)
  if item.queue ~= '' and is_slice_of(item.queue, item.fence, item.tt) then acknowledge(item) end
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
  if skip > 0 and skip >= #item.results then return 'ALREADY' end
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
local is_audit_bounded = false
local function write_audit(text)
  if is_audit_bounded then
    call('XADD', P .. 'audit', '*', 'audit', text)
  else
    call('XADD', P .. 'audit', 'MAXLEN', '~', ARGV[5], '*', 'audit', text)
    is_audit_bounded = true
  end
end

local function settle(item)
  local key = turn_key(item.tt)
  local fence, calls, admitted, done, cancelled, given, admitted_ms, log, has_history, holds = unpack(call('HMGET', key,
    TURN.fence, TURN.calls, TURN.admitted, TURN.done, TURN.cancelled, TURN.given, TURN.admitted_ms, TURN.log,
    TURN.has_history, TURN.holds))
  if fence ~= item.fence or ended[item.tt] then return lost(item, key, fence) end
  local rec = {
    calls = num(calls), admitted = num(admitted), done = num(done or 0), cancelled = cancelled, given = given,
    admitted_ms = admitted_ms, log = log, has_history = has_history,
  }
  local word = catch_up(item, rec.done)
  if word then return word end
  if item.queue == '' then recall(item, key, rec.done) end
  for i = 1, #item.audit do
    if item.audit[i] ~= '' then write_audit(item.audit[i]) end
  end
  local upto = rec.done + #item.results
  if upto < rec.admitted then
    keep(item, key, rec)
    return rec.cancelled and 'CANCELLED' or 'OK'
  end
  if acknowledge(item) then
    local t = tenant_of(item.tenant)
    t.out = t.out - 1
    free_places(item.tt, key, holds, now)
  end
  if upto >= rec.calls then return end_turn(item, key, rec) end
  keep(item, key, rec)
  return back_on_lane(item, key, rec)
end

local replies, at = {}, 7
for i = 1, num(ARGV[6]) do
  local item = {
    tenant = ARGV[at], turn = ARGV[at + 1], fence = ARGV[at + 2], queue = ARGV[at + 3], first = num(ARGV[at + 4]),
    inbox = ARGV[at + 5], head = ARGV[at + 6], open = ARGV[at + 7], close = ARGV[at + 8], audits = ARGV[at + 9],
    wakes = ARGV[at + 10],
    results = {}, messages = {}, audit = {},
  }
  item.tt = item.tenant .. ':' .. item.turn
  local n = num(ARGV[at + 11])
  at = at + 12
  for r = 1, n do
    item.results[r], item.messages[r], item.audit[r] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    at = at + 3
  end
  -- Rule 18, without a detour: this is the hottest loop.
  local done, word = pcall(settle, item)
  replies[i] = done and word or failed(word)
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
