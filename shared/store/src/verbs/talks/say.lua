#!lua flags=allow-oom
-- say: writes down what was said in a session: by its user, which makes the next exchange, or by its agent, which answers
-- one. Once for each place, so that whoever is not sure says it again.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused) · 2 tenant:session · 3 the session's agent · 4 number of the exchange · 5 'user' or 'agent' ·
--       6 what is said · 7 exchanges kept at most · 8 bytes kept at most · 9 how long they are kept, ms
-- reply OK · ALREADY (this very text stands there) · CONFLICT (another text stands there) · GAP (it is not the next
--       exchange, or the one that is answered is no longer kept) · OTHERS (the session is another agent's)
-- effect HSET session; HDEL of its oldest exchanges beyond the bounds
local key, number, text = P .. 'session:' .. ARGV[2], num(ARGV[4]), ARGV[6]
local agent, last, first, bytes = unpack(call('HMGET', key, 'agent', 'last', 'first', 'bytes'))
if agent and agent ~= ARGV[3] then return 'OTHERS' end
last, first, bytes = num(last or 0), num(first or 1), num(bytes or 0)
local field = ARGV[5] .. ':' .. ARGV[4]
local known = call('HGET', key, field)
if known then return known == text and 'ALREADY' or 'CONFLICT' end
if ARGV[5] == 'user' and number ~= last + 1 then return 'GAP' end
if ARGV[5] == 'agent' and call('HEXISTS', key, 'user:' .. ARGV[4]) == 0 then return 'GAP' end
bytes, last = bytes + #text, math.max(last, number)
while first < last and (last - first >= num(ARGV[7]) or bytes > num(ARGV[8])) do
  for _, side in ipairs({ 'user:', 'agent:' }) do
    bytes = bytes - call('HSTRLEN', key, side .. first)
    call('HDEL', key, side .. first)
  end
  first = first + 1
end
-- An answer that comes when its own exchange went just now has no place any more.
if number >= first then call('HSET', key, field, text) else bytes = bytes - #text end
call('HSET', key, 'agent', ARGV[3], 'last', last, 'first', first, 'bytes', bytes)
call('PEXPIRE', key, ARGV[9])
return 'OK'
