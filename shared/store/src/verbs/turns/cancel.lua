#!lua flags=allow-oom
-- cancel: asks for the end of a turn or a task, and of everything that it has begun, which `cascade` ends. What has not come
-- yet is waited for (rule 22): a mark is kept, bounded in number and time, and whoever admits the turn ends it.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:turn · 3 reason (bounded) · 4 lease ms · 5 how long a mark is kept, ms ·
--       6 marks of one tenant at most
-- reply OK · FLAGGED (its running calls end first) · ENDED (it had ended already; what it has begun ends) · WAITING (nothing of
--       that name has come yet; when it comes, it ends) · FULL (as WAITING, but too many marks wait: none is kept) ·
--       UNKNOWN (it was admitted once, and its record is lost)
-- effect HSET turn cancelled and cascades, ZADD timers, SADD cancel of its holder; XDEL of a slice that nobody has read; SET
--       and ZADD of a mark
local now = shard_time(ARGV[1])
local tt, why = ARGV[2], ARGV[3]
local below = 'its parent was cancelled: ' .. why

local word = cancel_live(tt, why, below, now, num(ARGV[4]))
if word then
  save_tenants()
  return word
end
end_below(tt, below, now)
if call('EXISTS', done_key(tt)) == 1 then return 'ENDED' end
local id = call('GETRANGE', id_key(tt), 0, 0)
if id == 'e' then return 'ENDED' elseif id == 'a' then return 'UNKNOWN' end
return cancel_early(tt, why, now, num(ARGV[5]), num(ARGV[6]))
