#!lua flags=allow-oom
-- brake: whether calls that are about to run are refused for a while, because the same call came in a row too often.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per call: its row, tenant:agent or tenant:agent:task · hash of tool and arguments
-- reply per call: {REFUSED, until ms} · FREE
-- effect none but the clock's
local now = clock(ARGV[1])

local function brake(row, hash)
  local until_ms = num(call('HGET', row_key(row), ROW.refused .. hash) or 0) or 0
  if until_ms <= now then return 'FREE' end
  return { 'REFUSED', string.format('%d', until_ms) }
end

local replies = {}
for i = 1, num(ARGV[2]) do replies[i] = word_of(brake, ARGV[i * 2 + 1], ARGV[i * 2 + 2]) end
return replies
