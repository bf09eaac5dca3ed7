#!lua flags=allow-oom
-- count_repeat: how often the same call has come in a row with the same result. From so many on, it is refused for a while.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 refused after so many · 3 for so long, ms · 4 a row is forgotten after, ms · 5 count, then per
--       call: its row, tenant:agent or tenant:agent:task · hash of tool and arguments · hash of the result · the call,
--       turn/position
-- reply per call: {how many, until when it is refused, ms, 0 if it is not}
-- effect HSET row, with a TTL
local now = clock(ARGV[1])
local refused_after, rest, forget = num(ARGV[2]), num(ARGV[3]), num(ARGV[4])
-- Calls of one row that are refused at the same time at most; the number of its other fields comes on top.
local REFUSED_MAX = 36

local function count_repeat(row, hash, result, by)
  local key = row_key(row)
  local was, was_result, was_by, count = unpack(call('HMGET', key, ROW.call, ROW.result, ROW.by, ROW.count))
  local is_same = was == hash and was_result == result
  count = is_same and (num(count) or 0) or 0
  -- Carried out again after a crash, it is the same one.
  if not is_same or was_by ~= by then count = count + 1 end
  local until_ms = count >= refused_after and now + rest or 0
  if until_ms > 0 then
    if call('HLEN', key) > REFUSED_MAX then call('DEL', key) end
    call('HSET', key, ROW.refused .. hash, string.format('%d', until_ms))
    -- After the rest, the row begins anew.
    call('HDEL', key, ROW.call, ROW.result, ROW.by, ROW.count)
  else
    call('HSET', key, ROW.call, hash, ROW.result, result, ROW.by, by, ROW.count, string.format('%d', count))
  end
  call('PEXPIRE', key, string.format('%d', math.max(forget, rest)))
  return { string.format('%d', count), string.format('%d', until_ms) }
end

local replies = {}
for i = 1, num(ARGV[5]) do
  local at = i * 4 + 2
  replies[i] = word_of(count_repeat, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
return replies
