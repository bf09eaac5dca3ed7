#!lua flags=allow-oom
-- touch: an outside runtime says that it still works on its task.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:task · 3 lease (the entry id that was read)
-- reply OK · CANCELLED (it was cancelled or its deadline has come: it is no longer prolonged) · STALE
-- effect HSET turn touched_ms
local now = clock(ARGV[1])
local key = turn_key(ARGV[2])
local fence, cancelled, deadline = unpack(call('HMGET', key, TURN.fence, TURN.cancelled, TURN.deadline_ms))
if fence ~= ARGV[3] then return 'STALE' end
if cancelled or num(deadline) <= now then return 'CANCELLED' end
call('HSET', key, TURN.touched_ms, now)
return 'OK'
