#!lua flags=allow-oom
-- touch: an outside runtime says that it still works on its task.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:task · 3 lease (the entry id that was read)
-- reply OK · CANCELLED (it was cancelled or its deadline has come: it is no longer prolonged) · STALE
-- effect HSET turn hb
local now = clock(ARGV[1])
local key = turn_key(ARGV[2])
local m = call('HMGET', key, 'f', 'cx', 'dl')
if m[1] ~= ARGV[3] then return 'STALE' end
if m[2] or num(m[3]) <= now then return 'CANCELLED' end
call('HSET', key, 'hb', now)
return 'OK'
