#!lua flags=allow-oom
-- pause: an operator lets none of a tenant's calls go out any more, of one of its agents, or to one tool; or lets them go out
-- again. What was admitted goes on (calls to a tool rest), and what waits waits on. The audit log has it in the same step.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 'pause', 'resume' or 'restore' · 3 tenant:agent, or tenant: for all of them; !tenant:tool, or !:tool
--       for calls of all tenants · 4 note, JSON
--       ('' for resume) · 5 pauses at most · 6 audit entry, JSON ('' for restore)
-- reply {OK | NONE | FULL, generation}: NONE where it was so already
-- effect HSET or HDEL pauses, HSET meta, ZADD timers, XADD audit
local now = shard_time(ARGV[1])
local what, who, note = ARGV[2], ARGV[3], ARGV[4]
local PAUSES = P .. 'pauses'
local gen = num(call('HGET', META, 'tenants_gen') or 0)
local is_paused = call('HEXISTS', PAUSES, who) == 1
if is_paused == (what ~= 'resume') then return { 'NONE', gen } end
if what ~= 'resume' and call('HLEN', PAUSES) >= num(ARGV[5]) then return { 'FULL', gen } end
if what == 'resume' then
  call('HDEL', PAUSES, who)
  -- Without a timer nothing waits. The lanes of a whole tenant are looked at when their agents' ticks begin.
  call('ZADD', TIMERS, 'XX', 'LT', now, 'l:' .. who)
else
  call('HSET', PAUSES, who, note)
end
-- From here on, nobody decides by what was before.
call('HSET', META, 'tenants_gen', gen + 1)
if ARGV[6] ~= '' then call('XADD', P .. 'audit', '*', 'audit', ARGV[6]) end
return { 'OK', gen + 1 }
