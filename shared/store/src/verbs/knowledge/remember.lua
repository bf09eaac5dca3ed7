#!lua
-- remember: adds a memory to those of an agent. One of the same id is there once. The oldest go where there are too many,
-- in number or in bytes.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant · 3 agent · 4 its id · 5 the memory, JSON · 6 memories at most · 7 bytes at most
-- reply {OK | KNOWN | PRESSURE, how many went}
-- effect HSET memories, remembered, kbs; ZADD remembered; HDEL and ZPOPMIN for what goes
local now = shard_time(ARGV[1])
local owner, id, memory = ARGV[2] .. ':' .. ARGV[3], ARGV[4], ARGV[5]
local memories_max, bytes_max = num(ARGV[6]), num(ARGV[7])
local texts, order, state = P .. 'memories:' .. owner, P .. 'remembered:' .. owner, P .. 'kbs:' .. ARGV[2]
if call('HEXISTS', texts, id) == 1 then return { 'KNOWN', 0 } end
if is_memory_short() then return { 'PRESSURE', 0 } end
local gen, bytes = unpack(call('HMGET', state, 'gen:' .. ARGV[3], 'bytes:' .. ARGV[3]))
gen, bytes = num(gen or 0), num(bytes or 0) + #memory
local count, gone = call('HLEN', texts) + 1, 0
-- Each turn of the loop makes one go: it ends with the last that there are.
while count > memories_max or bytes > bytes_max do
  local oldest = call('ZPOPMIN', order)[1]
  if not oldest then break end
  bytes = bytes - call('HSTRLEN', texts, oldest)
  local was = call('HDEL', texts, oldest)
  count, gone = count - was, gone + was
end
call('HSET', texts, id, memory)
call('ZADD', order, now, id)
call('HSET', state, 'gen:' .. ARGV[3], string.format('%.0f', math.max(gen + 1, now)),
  'bytes:' .. ARGV[3], string.format('%.0f', math.max(bytes, #memory)))
return { 'OK', gone }
