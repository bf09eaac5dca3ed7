#!lua
-- expect: calls of turns that are about to be admitted may set facts: who needs one of them waits for such a call, though it
-- has not begun. Nothing rests on it: what is not expected is not waited for.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per turn: tenant:turn · deadline · calls, then per call: position · tenant:session ·
--       changes, then per change: fact · ms that it is kept
-- reply per turn: OK
-- effect HSET entered, with a TTL; HINCRBY meta entered
local now = clock(ARGV[1])

local function expect(at)
  local turn, lives = string.match(ARGV[at], '^[^:]+:(.+)$'), math.max(num(ARGV[at + 1]) - now, 0) + 86400000
  local number
  local next_call = at + 3
  for _ = 1, num(ARGV[at + 2]) do
    local key, by = entered_key(ARGV[next_call + 1]), turn .. '/' .. ARGV[next_call]
    local text = {}
    for c = 1, num(ARGV[next_call + 2]) do
      text[c] = 'S' .. ARGV[next_call + 1 + c * 2] .. ' ' .. ARGV[next_call + 2 + c * 2]
    end
    -- Of a turn that was submitted twice, the one that is under way says more.
    if call('HEXISTS', key, by) == 0 and call('HLEN', key) < 128 then
      number = number or call('HINCRBY', META, 'entered', 1)
      call('HSET', key, by, string.format('%d e%d %s', number, now, table.concat(text, ',')))
      call('PEXPIRE', key, string.format('%d', math.max(call('PTTL', key), lives)))
    end
    next_call = next_call + 3 + num(ARGV[next_call + 2]) * 2
  end
  return 'OK'
end

local replies, at = {}, 3
for i = 1, num(ARGV[2]) do
  replies[i] = word_of(expect, at)
  local calls = num(ARGV[at + 2])
  at = at + 3
  for _ = 1, calls do at = at + 3 + num(ARGV[at + 2]) * 2 end
end
return replies
