#!lua flags=allow-oom
-- cancel: asks for the end of a turn or a task. What is not out is ended by the next promote; what is out is
-- flagged, and its holder ends it (rule 6).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:turn · 3 reason · 4 lease ms
-- reply OK · FLAGGED (its running calls end first) · ENDED (it had ended already) · UNKNOWN
-- effect HSET turn cx, ZADD timers
local now = clock(ARGV[1])
local tt = ARGV[2]
local key = turn_key(tt)
local m = call('HMGET', key, 'n', 'f', 'q', 'cr')
if not m[1] then return call('EXISTS', done_key(tt)) == 1 and 'ENDED' or 'UNKNOWN' end
call('HSET', key, 'cx', ARGV[3])
call('ZADD', TIMERS, now, 't:' .. tt)
local holder = m[2] and string.sub(m[2], 1, 2) ~= 's:' and pending(P .. queue_of(m[3], m[4], m[2]), m[2])
if not holder then return 'OK' end
call('SADD', P .. 'cancel:' .. holder, tt)
call('PEXPIRE', P .. 'cancel:' .. holder, num(ARGV[4]) * 2)
return 'FLAGGED'
