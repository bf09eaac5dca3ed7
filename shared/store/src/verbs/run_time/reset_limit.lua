#!lua flags=allow-oom
-- reset_limit: an operator sets one counter of a limit to zero. Its window begins anew, and ends as before; what waits for it is looked at now;
-- and the audit log has it in the same step, so that no reset goes unseen.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 limit · 3 counter · 4 audit entry, JSON whose last object and itself are still open: what
--       the counter was is known here alone, and is written behind its last member
-- reply {OK, what was used ('': it could not be read), when its window ends ms (likewise), turns that wait for it}, or
--       {NONE} where there is no such counter
-- effect HSET or HDEL counters, ZADD timers, XADD audit
local now = shard_time(ARGV[1])
local limit, counter_key, entry = ARGV[2], ARGV[3], ARGV[4]
local key, lane = counters_key(limit), limit .. '@' .. counter_key
local text = call('HGET', key, counter_key)
if not text then return { 'NONE' } end
local used, ends, began = read_counter(text, now)
if used then
  -- So auditors tell what was debited before from what was debited since.
  call('HSET', key, counter_key, struct.pack('<ddd', 0, ends, math.max(now, began + 1)))
  -- A window that has ended says nothing any more.
  if ends <= now then used = 0 end
else
  -- It counts as used up for as long as it is there.
  call('HDEL', key, counter_key)
end
-- Without a timer nothing waits.
call('ZADD', TIMERS, 'XX', 'LT', now, 'l:' .. lane)
local function show(number, absent) return number and string.format('%.0f', number) or absent end
entry = entry .. ',"used_before":' .. show(used, 'null') .. ',"window_ends_ms":' .. show(ends, 'null') .. '}}'
call('XADD', P .. 'audit', '*', 'audit', entry)
return { 'OK', show(used, ''), show(ends, ''), call('ZCARD', P .. 'lane:' .. lane) }
