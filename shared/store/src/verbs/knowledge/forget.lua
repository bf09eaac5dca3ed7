#!lua flags=allow-oom
-- forget: takes memories away from an agent.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant · 3 agent · 4… their ids
-- reply {OK, how many there were}
-- effect HDEL memories, ZREM remembered, HSET kbs
local now = shard_time(ARGV[1])
local owner = ARGV[2] .. ':' .. ARGV[3]
local texts, order, state = P .. 'memories:' .. owner, P .. 'remembered:' .. owner, P .. 'kbs:' .. ARGV[2]
local gen, bytes = unpack(call('HMGET', state, 'gen:' .. ARGV[3], 'bytes:' .. ARGV[3]))
gen, bytes = num(gen or 0), num(bytes or 0)
local gone = 0
for i = 4, #ARGV do
  bytes = bytes - call('HSTRLEN', texts, ARGV[i])
  call('ZREM', order, ARGV[i])
  gone = gone + call('HDEL', texts, ARGV[i])
end
if gone == 0 then return { 'OK', 0 } end
call('HSET', state, 'gen:' .. ARGV[3], string.format('%.0f', math.max(gen + 1, now)),
  'bytes:' .. ARGV[3], string.format('%.0f', math.max(bytes, 0)))
return { 'OK', gone }
