#!lua flags=allow-oom
-- drop_documents: takes documents out of a tenant's knowledge base.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant · 3… their ids
-- reply {OK, how many there were}
-- effect HDEL kb, kbd; HSET kbs
local now = shard_time(ARGV[1])
local tenant = ARGV[2]
local texts, documents, state = P .. 'kb:' .. tenant, P .. 'kbd:' .. tenant, P .. 'kbs:' .. tenant
local gen, bytes = unpack(call('HMGET', state, 'gen', 'bytes'))
gen, bytes = num(gen or 0), num(bytes or 0)
local gone = 0
for i = 3, #ARGV do
  bytes = bytes - call('HSTRLEN', documents, ARGV[i]) - call('HSTRLEN', texts, ARGV[i])
  call('HDEL', texts, ARGV[i])
  gone = gone + call('HDEL', documents, ARGV[i])
end
if gone == 0 then return { 'OK', 0 } end
call('HSET', state, 'gen', string.format('%.0f', math.max(gen + 1, now)), 'bytes', string.format('%.0f', math.max(bytes, 0)))
return { 'OK', gone }
