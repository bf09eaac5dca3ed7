#!lua flags=allow-oom
-- wake: has turns looked at now, however full memory is: what nobody holds must not wait for its deadline. One that
-- has ended since it was seen needs no timer, and gets none.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2… tenant:turn
-- reply how many timers were set
-- effect ZADD timers
local now, timers = clock(ARGV[1]), {}
for i = 2, #ARGV do
  if call('EXISTS', turn_key(ARGV[i])) == 1 then timers[#timers + 1], timers[#timers + 2] = now, 't:' .. ARGV[i] end
end
if #timers > 0 then call('ZADD', TIMERS, 'LT', unpack(timers)) end
return #timers / 2
