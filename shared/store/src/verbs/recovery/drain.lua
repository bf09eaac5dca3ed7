#!lua flags=allow-oom
-- drain: an operator has a worker take no new work, or lets it take work again. It hears of it with its next heartbeat
-- (beat.lua), and ends what it holds. The audit log has it in the same step. A worker puts its own back (restore), where Redis
-- has lost it: unless somebody has resumed the worker since.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 'drain', 'resume' or 'restore' · 3 worker: its consumers' names without their starts · 4 note, JSON
--       ('' for resume) · 5 drains at most · 6 audit entry, JSON; of restore, since when it was drained, ms of shard time ·
--       7… drained workers that are gone, which are forgotten
-- reply {OK | NONE | FULL | LIFTED}: NONE where it was so already, LIFTED where it is not put back
-- effect HSET or HDEL drains, XADD audit; SET lifted, for a day, where it is resumed: also where it is drained no more in Redis,
--        for its worker may not have heard that
local now = shard_time(ARGV[1])
local what, worker, note = ARGV[2], ARGV[3], ARGV[4]
local DRAINS, lifted = P .. 'drains', P .. 'lifted:' .. worker
local entry = what ~= 'restore' and ARGV[6]
if not entry then
  if (num(call('GET', lifted)) or -1) >= num(ARGV[6]) then return { 'LIFTED' } end
  what = 'drain'
elseif what == 'resume' then
  call('SET', lifted, string.format('%d', now), 'PX', 86400000)
end
if (call('HEXISTS', DRAINS, worker) == 1) == (what == 'drain') then return { 'NONE' } end
if what == 'drain' and call('HLEN', DRAINS) - (#ARGV - 6) >= num(ARGV[5]) then return { 'FULL' } end
for i = 7, #ARGV do call('HDEL', DRAINS, ARGV[i]) end
if what == 'drain' then
  call('HSET', DRAINS, worker, note)
else
  call('HDEL', DRAINS, worker)
end
if entry then
  if what == 'drain' then call('DEL', lifted) end
  call('XADD', P .. 'audit', '*', 'audit', entry)
end
return { 'OK' }
