#!lua flags=allow-oom
-- restate: a worker says again what ends of calls did to facts, where Redis may have lost that with its last writes (rule 8).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per change: tenant:session · S (set) or s (perhaps set) or C (cleared) or c
--       (perhaps cleared) · fact · ms that it is kept still · call · when it ended, ms of shard time
-- reply per change: OK · KNOWN (the fact stays as it was, or as somebody else has said since)
-- effect HSET facts, with a TTL
local now = clock(ARGV[1])
epoch(now)

local function restate(session, change, fact, kept, by, ended_ms)
  local _, since, whose = fact_of(call('HGET', facts_key(session), fact), now)
  if since and (whose == by or num(since) > ended_ms) then return 'KNOWN' end
  change_fact(session, change, fact, kept, by, now)
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[2]) do
  local at = i * 6 - 3
  replies[i] = word_of(restate, ARGV[at], ARGV[at + 1], ARGV[at + 2], num(ARGV[at + 3]), ARGV[at + 4], num(ARGV[at + 5]))
end
return replies
