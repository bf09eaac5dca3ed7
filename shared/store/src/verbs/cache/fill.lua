#!lua
-- fill: keeps the answer of a read for those who ask the same soon. Of one tenant only so much is kept: what would go
-- first by its time makes room. Nothing is kept while memory is short.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 answers of a tenant at most · 3 their bytes at most · 4 count, then per answer: tenant · hash of
--       what was asked · for how long, ms · when that was, ms of shard time as the asker knew it · the call that was carried out ·
--       media type · output
-- reply per answer: OK · PRESSURE · OLD (its time has come before it was heard of: its worker was stopped meanwhile)
-- effect HSET cached; ZADD cached_order; HDEL and ZREM for what goes
local now = clock(ARGV[1])
local answers_max, bytes_max = num(ARGV[2]), num(ARGV[3])
local is_short = is_memory_short()

-- Takes answers away; answers their bytes.
local function drop(texts, order, hashes)
  local bytes = 0
  for _, hash in ipairs(hashes) do bytes = bytes + call('HSTRLEN', texts, hash) end
  if hashes[1] then
    call('HDEL', texts, unpack(hashes))
    call('ZREM', order, unpack(hashes))
  end
  return bytes
end

local function fill(tenant, hash, ttl, asked, by, media, output)
  if is_short then return 'PRESSURE' end
  -- It is as old as the question.
  asked = math.min(asked, now)
  ttl = asked + ttl - now
  if ttl <= 0 then return 'OLD' end
  local texts, order = cached_key(tenant), cached_order_key(tenant)
  local entry = table.concat({ string.format('%d', now + ttl), string.format('%d', asked), by, media, output }, ' ')
  local bytes = num(call('HGET', texts, CACHED.bytes) or 0) + #entry - drop(texts, order, { hash })
  bytes = bytes - drop(texts, order, call('ZRANGEBYSCORE', order, '-inf', now, 'LIMIT', 0, 64))
  -- Each round takes some: it ends with the last that there are.
  while bytes > bytes_max or call('ZCARD', order) >= answers_max do
    local first = call('ZRANGE', order, 0, 15)
    if not first[1] then break end
    bytes = bytes - drop(texts, order, first)
  end
  call('HSET', texts, hash, entry, CACHED.bytes, string.format('%d', math.max(bytes, #entry)))
  call('ZADD', order, now + ttl, hash)
  local lives = string.format('%d', math.max(ttl, call('PTTL', texts)))
  call('PEXPIRE', texts, lives)
  call('PEXPIRE', order, lives)
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[4]) do
  local at = i * 7 - 2
  replies[i] = word_of(fill, ARGV[at], ARGV[at + 1], num(ARGV[at + 2]), num(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5],
    ARGV[at + 6])
end
return replies
