#!lua flags=allow-oom
-- drain: an operator has a worker take no new work, or lets it take work again. It hears of it with its next heartbeat
-- (beat.lua), and ends what it holds. The audit log has it in the same step. A worker puts its own back so, where Redis has
-- lost it.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused) · 2 'drain' or 'resume' · 3 worker: its consumers' names without their starts · 4 note, JSON
--       ('' for resume) · 5 drains at most · 6 audit entry, JSON ('' where it is put back) · 7… drained workers that are gone,
--       which are forgotten
-- reply {OK | NONE | FULL}: NONE where it was so already
-- effect HSET or HDEL drains, XADD audit
local what, worker, note = ARGV[2], ARGV[3], ARGV[4]
local DRAINS = P .. 'drains'
if (call('HEXISTS', DRAINS, worker) == 1) == (what == 'drain') then return { 'NONE' } end
if what == 'drain' and call('HLEN', DRAINS) - (#ARGV - 6) >= num(ARGV[5]) then return { 'FULL' } end
for i = 7, #ARGV do call('HDEL', DRAINS, ARGV[i]) end
if what == 'drain' then
  call('HSET', DRAINS, worker, note)
else
  call('HDEL', DRAINS, worker)
end
if ARGV[6] ~= '' then call('XADD', P .. 'audit', '*', 'audit', ARGV[6]) end
return { 'OK' }
