#!lua flags=allow-oom
-- lookup: the kept answers of reads, where there are such and their time has not come.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per call: tenant · hash of what is asked
-- reply per call: {age ms, the call that was carried out, media type, output} · ABSENT
-- effect none but the clock's
local now = clock(ARGV[1])

local function lookup(tenant, hash)
  local entry = call('HGET', cached_key(tenant), hash)
  -- What a hand has left there is none.
  local until_ms, at, by, media, output = string.match(entry or '', '^(%d+) (%d+) (%S+) (%S+) (.+)$')
  if not until_ms or num(until_ms) <= now then return 'ABSENT' end
  return { string.format('%d', math.max(now - num(at), 0)), by, media, output }
end

local replies = {}
for i = 1, num(ARGV[2]) do
  replies[i] = word_of(lookup, ARGV[i * 2 + 1], ARGV[i * 2 + 2])
end
return replies
