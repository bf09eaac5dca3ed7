#!lua flags=allow-oom
-- checkpoint: whoever follows a stream for others, as an exporter of the audit log does, has come so far. One of a name at
-- a time has its lease; whoever goes by an older position writes nothing, so that two never go on from the same one. With
-- the position that is there it only takes the lease.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 name · 3 follower · 4 lease ms · 5 the position that it goes by · 6 the position afterwards
-- reply {HELD} (another has the lease) · {STALE, now, position} · {OK, now, position}
-- effect SET follower; HSET followed
local now = shard_time(ARGV[1])
local lease, follower, before, after = P .. 'follower:' .. ARGV[2], ARGV[3], ARGV[5], ARGV[6]
if is_taken(lease, follower, now) then return { 'HELD' } end
take(lease, follower, now, ARGV[4])
local position = call('HGET', P .. 'followed', ARGV[2]) or ''
if position ~= before then return { 'STALE', now, position } end
if after ~= position then call('HSET', P .. 'followed', ARGV[2], after) end
return { 'OK', now, after }
