#!lua flags=allow-oom
-- reap: takes back what consumers hold whose heartbeat is gone. Owners come from the group itself, and heartbeat
-- and pending entries are looked at in one script (rule 12); an entry is never claimed, but written anew (rule 4).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 lease ms · 3 ending lease ms · 4 crashes_max · 5 dead_max · 6 entries at most ·
--       7 worst case of a slice, ms idle (0: none) · 8 dedupe_for ms · 9… queues (turns, tasks, ready:…)
-- reply {OK | HOLD, now, requeued, {endings…}, consumers removed, dead entries}
-- effect XADD, HSET turn, XACK, XGROUP DELCONSUMER where nothing is pending; quarantine after crashes_max
local now = clock(ARGV[1])
local lease, ending_lease, crashes_max = num(ARGV[2]), num(ARGV[3]), num(ARGV[4])
local dead_max, bound, worst = num(ARGV[5]), num(ARGV[6]), num(ARGV[7])
local epoch_ms = epoch(now)
local m = call('HMGET', META, 'reap_seen', 'reap_hold')
local hold = num(m[2] or 0)
-- After a gap in the reapers' own beat Redis was away, not the workers: they get a lease to beat again.
if not m[1] or now - num(m[1]) > lease / 2 then hold = now + lease end
hold = math.max(hold, epoch_ms > 0 and epoch_ms + lease or 0)
call('HSET', META, 'reap_seen', now, 'reap_hold', hold)
if now < hold then return { 'HOLD', now, 0, {}, 0, 0 } end

local requeued, endings, removed, dead = 0, {}, 0, 0

-- A slice of a dead worker: back to its queue, or into quarantine when it was started too often.
local function slice(queue, entry)
  local body = body_of_entry(queue, entry)
  if not body then return end
  local key = turn_key(body.tt)
  local r = call('HMGET', key, 'f', 'n', 'ad', 'dn', 'st', 'cr')
  if r[1] ~= entry then return end
  local rec = { n = num(r[2]), ad = num(r[3]), dn = num(r[4] or 0) }
  local crashes = body.crashes
  -- The first crash counts for all that the worker held; later ones only for the slice that it had started alone.
  if crashes == 0 or r[5] == entry then
    crashes = crashes + 1
    call('HSET', key, 'cr', crashes, 'hx', '1')
  end
  body = rest_of(body, rec.dn)
  if crashes >= crashes_max then
    local tenant = split(body.tt)
    local t = tenant_of(tenant)
    t.out = t.out - 1
    keep_body(key, body)
    endings[#endings + 1] = lease_ending(body.tt, key, rec, 'internal', rec.ad, crashes, now, ending_lease, body)
    return
  end
  call('HSET', key, 'f', dispatch(queue, body.tt, body.meta, body.first, crashes, body.attempt, body.calls))
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

-- An inbound entry of a dead scheduler: back to the stream, or to `dead` unread when it kills whoever reads it.
local function inbound(queue, entry, suspect)
  local found = call('XRANGE', P .. queue, entry, entry)
  if not found[1] then return end
  local f, fields, crashes, origin = found[1][2], {}, 0, entry
  for i = 1, #f, 2 do
    if f[i] == 'x' then crashes = num(f[i + 1])
    elseif f[i] == 'o' then origin = f[i + 1]
    else fields[#fields + 1], fields[#fields + 2] = f[i], f[i + 1]
    end
  end
  if crashes == 0 or suspect == entry then crashes = crashes + 1 end
  if crashes >= crashes_max then
    call('XADD', P .. 'dead', 'MAXLEN', '~', dead_max, '*', 'from', queue, 'entry', origin, 'reason', 'poison',
      'raw', unread(fields[2] or ''), 'tenant', '')
    reply_to_poison(queue, origin, fields)
    close_id(fields, num(ARGV[8]))
    dead = dead + 1
    return
  end
  call('XADD', P .. queue, '*', 'x', crashes, 'o', origin, unpack(fields))
  requeued = requeued + 1
end

local function take_back(queue, found, suspect)
  local acked = {}
  for i = 1, #found do
    local entry = found[i][1]
    acked[i] = entry
    if queue == 'turns' or queue == 'tasks' then inbound(queue, entry, suspect) else slice(queue, entry) end
    bound = bound - 1
  end
  if #acked > 0 then ack_and_trim(P .. queue, acked) end
end

local function consumer_of(info)
  local name, held
  for i = 1, #info, 2 do
    if info[i] == 'name' then name = info[i + 1] elseif info[i] == 'pending' then held = info[i + 1] end
  end
  return name, held
end

for q = 9, #ARGV do
  local queue = ARGV[q]
  local stream = P .. queue
  local consumers = call('EXISTS', stream) == 1 and call('XINFO', 'GROUPS', stream)[1] and
    call('XINFO', 'CONSUMERS', stream, GROUP) or {}
  for c = 1, #consumers do
    local name, held = consumer_of(consumers[c])
    local beat = num(call('HGET', P .. 'beats', name) or 0)
    if bound <= 0 then break end
    if beat <= now then
      if held > 0 then
        local suspect = call('HGET', P .. 'suspects', name)
        take_back(queue, call('XPENDING', stream, GROUP, '-', '+', bound, name), suspect)
        held = call('XPENDING', stream, GROUP, '-', '+', 1, name)[1] and 1 or 0
      end
      -- A consumer is deleted only with nothing pending, for that would destroy its entries.
      if held == 0 then
        call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
        removed = removed + 1
      end
    elseif worst > 0 and held > 0 then
      take_back(queue, call('XPENDING', stream, GROUP, 'IDLE', worst, '-', '+', bound, name))
    end
  end
end
-- Beats that ended a day ago name consumers that no stream knows any more.
local beats = call('HGETALL', P .. 'beats')
for i = 1, #beats, 2 do
  if num(beats[i + 1]) < now - 86400000 then
    call('HDEL', P .. 'beats', beats[i])
    call('HDEL', P .. 'nodes', beats[i])
    call('HDEL', P .. 'suspects', beats[i])
  end
end
save_tenants()
return { 'OK', now, requeued, endings, removed, dead }
