#!lua
-- tell: puts a message of one agent where another finds it: once, however often it is told.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:agent that is told · 3 the message · 4 unread messages of an agent at most · 5 messages
--       that have been read and are remembered at most · 6 how long messages are kept, ms
-- reply OK · ALREADY · FULL (too many of its messages are unread)
-- effect ZADD messages: an unread one at the time when it came, one that was read at that time below zero
local now = shard_time(ARGV[1])
local key, message = P .. 'messages:' .. ARGV[2], ARGV[3]
local kept_ms = num(ARGV[6])
call('ZREMRANGEBYSCORE', key, 1, now - kept_ms)
call('ZREMRANGEBYSCORE', key, kept_ms - now, -1)
if call('ZSCORE', key, message) then return 'ALREADY' end
local unread = call('ZCOUNT', key, 1, '+inf')
if unread >= num(ARGV[4]) then return 'FULL' end
-- Those that were read are kept so that they are not told again; the oldest go first.
local beyond = call('ZCARD', key) - unread - num(ARGV[5])
if beyond > 0 then call('ZREM', key, unpack(call('ZREVRANGEBYSCORE', key, -1, '-inf', 'LIMIT', 0, math.min(beyond, 100)))) end
call('ZADD', key, now, message)
call('PEXPIRE', key, ARGV[6])
return 'OK'
