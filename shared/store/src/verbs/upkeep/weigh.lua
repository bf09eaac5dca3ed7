#!lua flags=allow-oom
-- weigh: looks at Redis' memory and says for all scripts whether it is short (rule 13). The flag is written however full
-- memory is.
-- KEYS  1 prefix
-- ARGV  1 injected clock
-- reply {bytes in use, bytes at most (0: no bound)}
-- effect HSET meta pressure, memory_max
clock(ARGV[1])
local info = call('INFO', 'memory')
local used, max = num(string.match(info, 'used_memory:(%d+)')), num(string.match(info, 'maxmemory:(%d+)'))
local pressure = max > 0 and used >= max * 0.8 and '1' or '0'
local known_pressure, known_max = unpack(call('HMGET', META, 'pressure', 'memory_max'))
if known_pressure ~= pressure or num(known_max or -1) ~= max then
  call('HSET', META, 'pressure', pressure, 'memory_max', string.format('%.0f', max))
end
return { string.format('%.0f', used), string.format('%.0f', max) }
