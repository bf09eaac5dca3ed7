#!lua flags=allow-oom
-- touch: an outside runtime says that it still works on its task.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:task · 3 lease (the entry id that was read)
-- reply OK · CANCELLED · STALE
-- effect HSET turn hb
local now = clock(ARGV[1])
local key = turn_key(ARGV[2])
local m = call('HMGET', key, 'f', 'cx')
if m[1] ~= ARGV[3] then return 'STALE' end
call('HSET', key, 'hb', now)
return m[2] and 'CANCELLED' or 'OK'
