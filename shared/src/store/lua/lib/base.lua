-- Shared by every script: key names, the shard's clock, its epoch. KEYS[1] is the shard's prefix; every other
-- key is built from it, so all keys of a shard share one hash tag.
local P = KEYS[1]
local META, TIMERS = P .. 'meta', P .. 'timers'
local GROUP = 'workers'
local call = redis.call
local num = tonumber

local function turn_key(tt) return P .. 'turn:' .. tt end
local function done_key(tt) return P .. 'done:' .. tt end
local function id_key(tt) return P .. 'id:' .. tt end
local function lane_key(tenant, agent) return P .. 'lane:' .. tenant .. ':' .. agent end
local function tenant_key(tenant) return P .. 'tenant:' .. tenant end

-- Rule 2: Redis TIME plus an offset that grows when TIME steps back, so windows neither repeat nor stop.
-- `injected` replaces TIME in tests and is empty otherwise. Answers shard time, TIME itself (what numbers the entries
-- of streams, so what they are trimmed by: rule 20), and whether memory is short.
local function clock(injected)
  local t = call('TIME')
  local redis_ms = t[1] * 1000 + math.floor(t[2] / 1000)
  local raw = injected == '' and redis_ms or num(injected)
  local m = call('HMGET', META, 'offset_ms', 'last_ms', 'pressure')
  local offset, last, tight = num(m[1] or 0), num(m[2] or 0), m[3] == '1'
  local now = raw + offset
  if now < last then
    call('HSET', META, 'offset_ms', offset + last - now, 'step_ms', last - now)
    call('HINCRBY', META, 'steps', 1)
    return last, redis_ms, tight
  end
  if now > last then call('HSET', META, 'last_ms', now) end
  return now, redis_ms, tight
end

-- Rule 8: a Redis that restarted may have lost its last writes. Answers when this epoch began (0: the first).
local function epoch(now)
  local id = string.match(call('INFO', 'server'), 'run_id:(%x+)')
  local m = call('HMGET', META, 'run_id', 'epoch_ms')
  if m[1] == id then return num(m[2] or 0) end
  local began = m[1] and now or 0
  call('HSET', META, 'run_id', id, 'epoch_ms', began)
  call('HINCRBY', META, 'epoch', 1)
  return began
end

-- Arms timers, given as score, member, score, member…, in few commands.
local function arm(timers)
  for from = 1, #timers, 1000 do call('ZADD', TIMERS, unpack(timers, from, math.min(from + 999, #timers))) end
end

-- Whether `entry` has been delivered to some consumer and not been acknowledged; answers the consumer or nil.
local function pending(stream, entry)
  local found = call('XPENDING', stream, GROUP, entry, entry, 1)
  return found[1] and found[1][2] or nil
end

-- Rule 5: trims a stream up to what is neither pending nor undelivered. Never past the last delivered entry:
-- with nothing pending, trimming to the newest id would destroy what nobody has read. `acked` are entries just
-- acknowledged: where one old pending entry holds back many, they are deleted one by one instead.
local function trim(stream, acked)
  local groups = call('XINFO', 'GROUPS', stream)
  if not groups[1] then return end
  local last
  for i = 1, #groups[1], 2 do
    if groups[1][i] == 'last-delivered-id' then last = groups[1][i + 1] end
  end
  local ms, seq = string.match(last, '^(%d+)-(%d+)$')
  local oldest = call('XPENDING', stream, GROUP)[2]
  if oldest then
    local removed = call('XTRIM', stream, 'MINID', oldest)
    if removed == 0 and acked and #acked > 0 and call('XLEN', stream) > 1000 then
      call('XDEL', stream, unpack(acked))
    end
  else
    call('XTRIM', stream, 'MINID', ms .. '-' .. string.format('%.0f', num(seq) + 1))
  end
end

-- Closes the id that `submit` remembered for an inbound entry which ends unadmitted (rule 9): it keeps answering
-- DUPLICATE for a while, and then goes. An id that another entry was admitted under is not ours to close.
local function close_id(fields, dedupe)
  for i = 1, #fields, 2 do
    if fields[i] == 'i' then
      local id = call('GET', id_key(fields[i + 1]))
      if id and string.sub(id, 1, 1) == 'q' then
        call('SET', id_key(fields[i + 1]), 'e' .. string.sub(id, 2), 'PX', dedupe)
      end
    end
  end
end

-- Acknowledges entries of one stream in chunks that fit Lua's stack, then trims it.
local function ack_and_trim(stream, entries)
  for from = 1, #entries, 1000 do
    call('XACK', stream, GROUP, unpack(entries, from, math.min(from + 999, #entries)))
  end
  trim(stream, #entries <= 1000 and entries or nil)
end
