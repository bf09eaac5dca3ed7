#!lua flags=allow-oom
-- reap: takes back what consumers hold whose heartbeat is gone. Owners come from the group itself, and heartbeat
-- and pending entries are looked at in one script (rule 12); an entry is never claimed, but written anew (rule 4).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 lease ms · 3 ending lease ms · 4 crashes_max · 5 dead_max · 6 entries at most ·
--       7 dedupe_for ms · 8 bytes at most, about · 9 inboxes_max · 10 reply_retain ms · 11 ms within which another reap is
--       enough (0: none is) · 12… queues (turns, tasks, ready:…)
-- reply {RECENT, now} (another reap was a moment ago: nothing written) or {OK | HOLD, now, requeued, {endings…}, consumers removed, dead entries, more ('1': a bound was reached),
--       put aside {entry, why, entry, why…}}
-- effect XADD, HSET turn, XACK, XGROUP DELCONSUMER where nothing is pending; quarantine after crashes_max; what cannot
--       be read goes to `dead`; trims what nobody holds and everybody has read
local now = clock(ARGV[1])
local lease, ending_lease, crashes_max = num(ARGV[2]), num(ARGV[3]), num(ARGV[4])
local dead_max, bound, bytes = num(ARGV[5]), num(ARGV[6]), num(ARGV[8])
local BEATS = P .. 'beats'
local reap_seen, reap_hold, beats_at = unpack(call('HMGET', META, 'reap_seen', 'reap_hold', 'beats_at'))
if reap_seen and now - num(reap_seen) < num(ARGV[11]) then return { 'RECENT', now } end
local epoch_ms = epoch(now)
local hold = num(reap_hold or 0)
-- After a gap in the reapers' own beat Redis was away, not the workers: they get a lease to beat again. So they do
-- where the beats themselves are gone.
if not reap_seen or now - num(reap_seen) > lease / 2 then hold = now + lease end
if call('EXISTS', BEATS) == 0 then hold = now + lease end
hold = math.max(hold, epoch_ms > 0 and epoch_ms + lease or 0)
call('HSET', META, 'reap_seen', now, 'reap_hold', hold)
if now < hold then return { 'HOLD', now, 0, {}, 0, 0, '', {} } end

-- A time that a hand may have changed: what is none has passed.
local function time_of(text) return text and string.match(text, '^%d+$') and num(text) or 0 end

local requeued, endings, removed, dead, aside = 0, {}, 0, 0, {}

-- A slice of a dead worker: back to its queue, or into quarantine when it was started too often. What its entry does
-- not tell, its record does.
local function slice(queue, entry)
  local body, tt, size = body_of_entry(queue, entry)
  bytes = bytes - size
  if not tt then
    -- Nobody's: a foreign writer's, or already gone.
    if size > 0 then error('it names no turn', 0) end
    return
  end
  local key = turn_key(tt)
  local fence, calls, admitted, done, started, crashed = unpack(call('HMGET', key, TURN.fence, TURN.calls, TURN.admitted,
    TURN.done, TURN.started, TURN.crashes))
  if fence ~= entry then return end
  local rec = { calls = num(calls), admitted = num(admitted), done = num(done or 0) }
  body = body and rest_of(body, rec.done) or body_of_record(key, rec.done, rec.admitted)
  local crashes = body and body.crashes or whole(crashed) or 0
  -- The first crash counts for all that the worker held; later ones only for the slice that it had started alone.
  if crashes == 0 or started == entry then
    crashes = crashes + 1
    call('HSET', key, TURN.crashes, crashes, TURN.has_history, '1')
  end
  if crashes >= crashes_max or not body then
    local tenant = split(tt)
    local t = tenant_of(tenant)
    t.out = t.out - 1
    if body then keep_body(key, body) end
    local ending = lease_ending(tt, key, rec, 'internal', rec.admitted, crashes, now, ending_lease, body)
    if ending ~= 'LATER' then endings[#endings + 1] = ending end
    return
  end
  call('HSET', key, TURN.fence, dispatch(queue, tt, body.meta, body.first, crashes, body.attempt, body.calls,
    body.lost, body.waited, body.shades))
  requeued = requeued + 1
end

-- What is kept of a message that nobody may read: its ids, as far as they are plain, and its length. What else is in it
-- may be a secret.
local function unread(raw)
  local head, ids = string.sub(raw, 1, 4096), {}
  for _, name in ipairs({ 'turn_id', 'task_id', 'tenant', 'agent' }) do
    local id = string.match(head, '"' .. name .. '"%s*:%s*"([%w_.%-]+)"')
    if id and #id <= 96 then ids[#ids + 1] = '"' .. name .. '":"' .. id .. '",' end
  end
  return '{' .. table.concat(ids) .. '"unread_bytes":' .. #raw .. '}'
end

-- What an inbound entry says: its message and id as they are, how often its readers died, and where it came from.
-- Other fields are kept while they are few: what a foreign writer adds must not fill Lua's stack.
local function fields_of(entry, f)
  local fields, crashes, origin, seen = {}, 0, entry, {}
  for i = 1, #f, 2 do
    local k, v = f[i], f[i + 1]
    bytes = bytes - #k - #v
    if k == INBOUND.crashes then crashes = whole(v) or 0
    elseif k == INBOUND.origin then origin = v
    elseif not seen[k] and (k == INBOUND.turn or k == INBOUND.task or k == INBOUND.given or #fields < 32) then
      seen[k], fields[#fields + 1], fields[#fields + 2] = true, k, v
    end
  end
  return fields, crashes, origin
end

-- An inbound entry of a dead scheduler (or of nobody: `lost`): back to the stream, or to `dead` unread when it kills
-- whoever reads it.
local function inbound(queue, entry, suspect, lost)
  local found = call('XRANGE', P .. queue, entry, entry)
  if not found[1] then return end
  local fields, crashes, origin = fields_of(entry, found[1][2])
  if not lost and (crashes == 0 or suspect == entry) then crashes = crashes + 1 end
  if crashes >= crashes_max then
    call('XADD', P .. 'dead', 'MAXLEN', '~', dead_max, '*', 'from', queue, 'entry', origin, 'reason', 'poison',
      'raw', unread(fields[2] or ''), 'tenant', '')
    -- Its reply goes into a key that anybody may have changed: that costs the reply alone.
    pcall(reply_to_poison, queue, origin, fields, num(ARGV[9]), now, num(ARGV[10]))
    close_id(entry, fields, num(ARGV[7]))
    dead = dead + 1
    return
  end
  local anew = call('XADD', P .. queue, '*', INBOUND.crashes, crashes, INBOUND.origin, origin, unpack(fields))
  came_anew(anew)
  for i = 1, #fields, 2 do
    local tt = fields[i] == INBOUND.given and fields[i + 1]
    if tt and call('HGET', QUEUED, tt) == entry then call('HSET', QUEUED, tt, anew) end
  end
  requeued = requeued + 1
end

local function is_inbound(queue) return queue == 'turns' or queue == 'tasks' end

-- One entry, whatever it is (rule 18): one that cannot be taken back is put aside, and the others are.
local function take(queue, entry, ...)
  local done, why = alone(is_inbound(queue) and inbound or slice, queue, entry, ...)
  bound = bound - 1
  if not done then
    put_aside(queue, entry, why)
    aside[#aside + 1], aside[#aside + 2] = queue .. ' ' .. entry, why
    dead = dead + 1
  end
end

local function take_back(queue, found, suspect)
  local acked = {}
  for i = 1, #found do
    if bytes <= 0 then break end
    take(queue, found[i][1], suspect)
    acked[i] = found[i][1]
  end
  if is_inbound(queue) then end_inbound(P .. queue, acked) elseif #acked > 0 then ack_and_trim(P .. queue, acked) end
end

-- Rule 21: inbound entries that were delivered, that nobody holds, and that nobody has ended (for those are removed):
-- whoever held them was deleted from the group. They lie before all that is held or undelivered.
local function take_lost(queue, group)
  local stream = P .. queue
  while bound > 0 and bytes > 0 do
    local first = call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    if not first or after(first[1], group['last-delivered-id']) or pending(stream, first[1]) then return end
    take(queue, first[1], nil, true)
    call('XDEL', stream, first[1])
  end
end

-- Until when a consumer's lease lasts. Most read several streams.
local leases = {}
local function lease_of(name)
  leases[name] = leases[name] or time_of(call('HGET', BEATS, name))
  return leases[name]
end

-- What one consumer holds.
local function consumer(queue, name, held)
  local stream, beat = P .. queue, lease_of(name)
  if beat <= now then
    if held > 0 then
      -- A mark of the build before this one names no queue.
      local suspect = call('HMGET', P .. 'suspects', queue .. ' ' .. name, name)
      take_back(queue, call('XPENDING', stream, GROUP, '-', '+', bound, name), suspect[1] or suspect[2])
      held = call('XPENDING', stream, GROUP, '-', '+', 1, name)[1] and 1 or 0
    end
    -- A consumer is deleted only with nothing pending, for that would destroy its entries.
    if held == 0 then
      call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
      removed, bound = removed + 1, bound - 1
    end
  end
end

local function look_at(queue)
  local stream = P .. queue
  local group = group_of(stream)
  if not group then return end
  local consumers = group.consumers > 0 and call('XINFO', 'CONSUMERS', stream, GROUP) or {}
  for c = 1, #consumers do
    if bound <= 0 or bytes <= 0 then return end
    local info = {}
    for i = 1, #consumers[c], 2 do info[consumers[c][i]] = consumers[c][i + 1] end
    consumer(queue, info.name, info.pending)
  end
  if is_inbound(queue) then take_lost(queue, group) end
  if not is_inbound(queue) and call('XLEN', stream) > group.pending then trim(stream) end
end

for q = 12, #ARGV do
  local done, why = alone(look_at, ARGV[q])
  if not done then aside[#aside + 1], aside[#aside + 2] = ARGV[q], why end
end

-- Beats that ended a day ago name consumers that no stream knows any more: some at a time.
local found = call('HSCAN', BEATS, beats_at or '0', 'COUNT', 64)
for i = 1, #found[2], 2 do
  if time_of(found[2][i + 1]) < now - 86400000 then
    local name = found[2][i]
    call('HDEL', BEATS, name)
    call('HDEL', P .. 'nodes', name)
    call('HDEL', P .. 'suspects', name, 'turns ' .. name, 'tasks ' .. name)
  end
end
call('HSET', META, 'beats_at', found[1])
save_tenants()
local more = (bound <= 0 or bytes <= 0) and '1' or ''
return { 'OK', now, requeued, endings, removed, dead, more, aside }
