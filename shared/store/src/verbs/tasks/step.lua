#!lua flags=allow-oom
-- step: adds to the history of a task that is carried out in steps, under the fence of its slice. Whoever takes the task
-- over reads there how far it has come. What a model's answer has used is counted in the same step.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:task · 3 fence · 4 entries that the history has already, as the caller knows it ·
--       5 bytes of a history at most · 6 how long it is kept beyond the task's deadline, ms · 7 number of the request in its
--       task ('': no model was asked) · 8 agent · 9 tokens in · 10 tokens out · 11 cost · 12 the tenant's day: start ·
--       13 end, ms · 14 how long a day is kept, ms · 15 agents that a day tells apart · entries…
-- reply OK · ALREADY (these entries are in: the same step was repeated) · STALE (another holds the task, or has come
--       further) · FULL (the history would be too large; what was used is counted)
-- effect RPUSH steps, HSET turn (steps_bytes, counted, spent…), HINCRBY usage, HSET counters, ZADD timers
local now = clock(ARGV[1])
local tt, known, first = ARGV[2], num(ARGV[4]), 16
local key, steps = turn_key(tt), steps_key(tt)
local fence, bytes, deadline = unpack(call('HMGET', key, TURN.fence, TURN.steps_bytes, TURN.deadline_ms))
if fence ~= ARGV[3] then return 'STALE' end
local length, more, count = call('LLEN', steps), 0, #ARGV - first + 1
if count > 0 and length == known + count and call('LRANGE', steps, known, -1)[1] == ARGV[first] then return 'ALREADY' end
if length ~= known then return 'STALE' end
if ARGV[7] ~= '' then
  ARGV[7] = fence .. '/' .. ARGV[7]
  spend(tt, key, 7, now)
end
if count == 0 then return 'OK' end
for i = first, #ARGV do more = more + #ARGV[i] end
if num(bytes or 0) + more > num(ARGV[5]) then return 'FULL' end
for i = first, #ARGV do call('RPUSH', steps, ARGV[i]) end
call('HINCRBY', key, TURN.steps_bytes, more)
-- The task ends by its deadline; what it did can be read for a while longer.
call('PEXPIRE', steps, math.max(num(deadline) - now, 0) + num(ARGV[6]))
return 'OK'
