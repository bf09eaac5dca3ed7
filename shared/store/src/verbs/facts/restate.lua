#!lua flags=allow-oom
-- restate: a worker says again what ends of calls did to facts, where Redis may have lost that with its last writes (rule 8).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per change: tenant:session · S (set) or s (perhaps set) or C (cleared) or c
--       (perhaps cleared) · fact · ms that it is kept still · call · when it ended, ms of shard time
-- reply per change: OK · KNOWN (the fact stays as it was, or as somebody else has said since)
-- effect HSET facts, with a TTL
local now = clock(ARGV[1])
epoch(now)

-- What a call has changed just now: what it clears and sets anew is one end, and comes in one script.
local again = {}

local function restate(session, change, fact, kept, by, ended_ms)
  local parts = parts_of(call('HGET', facts_key(session), fact))
  local last, mine = parts.m or parts.y or parts.n, session .. ' ' .. fact .. ' ' .. by
  if last then
    local surely = parts.y or last
    if not again[mine] and (last[3] == by or surely[3] == by or num(surely[2]) > ended_ms) then return 'KNOWN' end
    -- What perhaps has happened since then stays perhaps so, and makes nothing certain that this may have ended.
    if num(last[2]) > ended_ms then change = string.lower(change) end
  end
  -- Since when it happened: what came later and was lost as well is said again behind it.
  if not change_fact(session, change, fact, kept, by, now, math.min(ended_ms, now)) then return 'KNOWN' end
  again[mine] = true
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[2]) do
  local at = i * 6 - 3
  replies[i] = word_of(restate, ARGV[at], ARGV[at + 1], ARGV[at + 2], num(ARGV[at + 3]), ARGV[at + 4], num(ARGV[at + 5]))
end
return replies
