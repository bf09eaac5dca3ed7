#!lua
-- announce: makes a policy the one in force. The same digest keeps its generation, another begins the next.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 digest of the policy · 3 number of shards
-- reply {OK, generation} · {SHARDS, the stored number}
-- effect HSET meta
clock(ARGV[1])
local m = call('HMGET', META, 'policy_gen', 'policy', 'shards')
-- Rule 10: a tenant's shard depends on the number of shards, so all must agree on it.
if m[3] and m[3] ~= ARGV[3] then return { 'SHARDS', m[3] } end
if m[2] == ARGV[2] then return { 'OK', m[1] } end
call('HSET', META, 'policy', ARGV[2], 'shards', ARGV[3])
return { 'OK', tostring(call('HINCRBY', META, 'policy_gen', 1)) }
