#!lua
-- keep_document: puts a document into a tenant's knowledge base, in place of the one of its id, whole or not at all.
-- Readers tell by the generation that something has changed. It is never one that was there before, for it is at least the
-- time: a generation that was lost with the base does not come again.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant · 3 its id · 4 its description, JSON · 5 its passages · 6 documents at most ·
--       7 bytes of the base at most
-- reply {OK | PRESSURE | DOCUMENTS | BYTES, generation}: the last two where the base is full of either
-- effect HSET kb, kbd, kbs
local now = shard_time(ARGV[1])
local tenant, id, description, passages = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local documents_max, bytes_max = num(ARGV[6]), num(ARGV[7])
local texts, documents, state = P .. 'kb:' .. tenant, P .. 'kbd:' .. tenant, P .. 'kbs:' .. tenant
local gen, bytes = unpack(call('HMGET', state, 'gen', 'bytes'))
gen, bytes = num(gen or 0), num(bytes or 0)
if is_memory_short() then return { 'PRESSURE', gen } end
if call('HEXISTS', documents, id) == 0 and call('HLEN', documents) >= documents_max then return { 'DOCUMENTS', gen } end
local before = call('HSTRLEN', documents, id) + call('HSTRLEN', texts, id)
local after = #description + #passages
if after > before and bytes - before + after > bytes_max then return { 'BYTES', gen } end
gen = math.max(gen + 1, now)
call('HSET', texts, id, passages)
call('HSET', documents, id, description)
call('HSET', state, 'gen', string.format('%.0f', gen), 'bytes', string.format('%.0f', math.max(bytes - before, 0) + after))
return { 'OK', string.format('%.0f', gen) }
