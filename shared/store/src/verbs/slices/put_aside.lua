#!lua flags=allow-oom
-- put_aside: takes an entry of a queue that is no slice of anybody's to the dead stream.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 queue · 3 entry · 4 why
-- reply OK · STALE (nobody holds it)
-- effect XADD dead; XACK and XDEL of the entry
local stream = P .. ARGV[2]
if not pending(stream, ARGV[3]) then return 'STALE' end
put_aside(ARGV[2], ARGV[3], ARGV[4])
call('XACK', stream, GROUP, ARGV[3])
call('XDEL', stream, ARGV[3])
return 'OK'
