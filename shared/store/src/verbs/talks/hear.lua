#!lua flags=allow-oom
-- hear: gives an agent the messages that it has not read, and takes them for read. Whoever asks again under the same name
-- gets the same ones: the answer may have been lost.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:agent · 3 a name for this hearing · 4 messages at most · 5 how long a hearing is kept,
--       ms
-- reply {now, time, message, time, message…}, the oldest first
-- effect ZADD messages, RPUSH heard
local now = clock(ARGV[1])
local key, heard = P .. 'messages:' .. ARGV[2], P .. 'heard:' .. ARGV[2] .. ':' .. ARGV[3]
local reply = { tostring(now) }
for i, text in ipairs(call('LRANGE', heard, 0, -1)) do reply[i + 1] = text end
if #reply > 1 then return reply end
local unread = call('ZRANGEBYSCORE', key, 1, '+inf', 'WITHSCORES', 'LIMIT', 0, num(ARGV[4]))
for i = 1, #unread, 2 do
  call('ZADD', key, -num(unread[i + 1]), unread[i])
  call('RPUSH', heard, unread[i + 1], unread[i])
  reply[#reply + 1], reply[#reply + 2] = unread[i + 1], unread[i]
end
if #unread > 0 then call('PEXPIRE', heard, ARGV[5]) end
return reply
