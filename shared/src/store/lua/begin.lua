#!lua flags=allow-oom
-- begin: fences the start of a call, so that a side effect is never begun twice (rule 7), or marks that a
-- suspect slice was really started (rule 12).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 lease ms · 3 count, then per call: tenant:turn · fence · position · nonce or '' (mark only)
-- reply per call: OK · DONE (its result is there) · UNKNOWN (begun by somebody who is gone) · STALE · CANCELLED ·
--       EXPIRED · HOLD (Redis restarted less than a lease ago)
-- effect HSET turn b (position:nonce), st (fence)
local now = clock(ARGV[1])
local hold = epoch(now) + num(ARGV[2])

local function begin(tt, fence, position, nonce)
  local key = turn_key(tt)
  local m = call('HMGET', key, 'f', 'dn', 'b', 'cx', 'dl')
  if m[1] ~= fence then return 'STALE' end
  if position < num(m[2] or 0) then return 'DONE' end
  local mine = position .. ':' .. nonce
  if nonce ~= '' and m[3] == mine then return 'OK' end
  -- Another's begin of this very call: what it did cannot be known.
  if nonce ~= '' and m[3] and num(string.match(m[3], '^%d+')) == position then return 'UNKNOWN' end
  if m[4] then return 'CANCELLED' end
  if num(m[5]) <= now then return 'EXPIRED' end
  if nonce ~= '' and now < hold then return 'HOLD' end
  if nonce == '' then
    call('HSET', key, 'st', fence)
  else
    call('HSET', key, 'st', fence, 'b', mine)
  end
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[3]) do
  local at = i * 4
  replies[i] = word_of(begin, ARGV[at], ARGV[at + 1], num(ARGV[at + 2]), ARGV[at + 3])
end
return replies
