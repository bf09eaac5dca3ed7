#!lua
-- replay: an operator has something done anew that was put aside: a dead letter, or a call that failed for good. Whoever
-- does it is done with it in the same step, so nothing is replayed twice, and the audit log has it in that step, too.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused) · 2 'letter' or 'call' · 3 its entry in the dead stream or the audit log · 4 'turns' or 'tasks' ·
--       5 entries of that stream at most · 6 its bytes at most · 7 message · 8 tenant:turn, '' of a task · 9 digest of the
--       content · 10 calls at most that somebody is done with · 11 audit entry, JSON · 12 tenant:inbox of the reply or '' ·
--       13 unread replies at most
-- reply OK <entry> · GONE (it is not there any more) · AGAIN (somebody has done with it) · DUPLICATE, CONFLICT (the id is
--       in use, with this content or another) · QUEUE_FULL · INBOX_FULL · PRESSURE · FULL (too many calls that somebody is
--       done with)
-- effect XADD turns or tasks, XDEL dead or ZADD handled, XADD audit; the id is remembered as by submit
local kind, from, stream, message, tt = ARGV[2], ARGV[3], P .. ARGV[4], ARGV[7], ARGV[8]
local why_not = nothing_to_do(kind, from, num(ARGV[10]))
if why_not then return why_not end
-- The id is looked for before the bound, as by submit.
local known = tt ~= '' and call('GET', id_key(tt))
if known and is_waiting(tt, known) then
  return string.sub(known, 2) == ARGV[9] and 'DUPLICATE' or 'CONFLICT'
end
local pressure, memory_max = unpack(call('HMGET', META, 'pressure', 'memory_max'))
if pressure == '1' then return 'PRESSURE' end
-- Rule 19, as by submit: what waits may not fill the memory.
local bytes_max = num(ARGV[6])
if num(memory_max or 0) > 0 then bytes_max = math.min(bytes_max, num(memory_max) / 2) end
if call('XLEN', stream) >= num(ARGV[5]) then return 'QUEUE_FULL' end
if call('XLEN', stream) >= 64 and call('MEMORY', 'USAGE', stream, 'SAMPLES', 5) >= bytes_max then return 'QUEUE_FULL' end
-- Rule 14, as by submit.
local inbox, unread_max = ARGV[12], num(ARGV[13])
if inbox ~= '' and unread(inbox, unread_max) >= unread_max then return 'INBOX_FULL' end
local entry
if tt == '' then
  entry = call('XADD', stream, '*', INBOUND.task, message)
else
  call('SET', id_key(tt), 'q' .. ARGV[9])
  entry = call('XADD', stream, '*', INBOUND.turn, message, INBOUND.given, tt)
  call('HSET', QUEUED, tt, entry)
end
done_with(kind, from)
call('XADD', P .. 'audit', '*', 'audit', ARGV[11])
return 'OK ' .. entry
