#!lua flags=allow-oom
-- rest: parks a slice whose next call is not sent, for its tool rests after failures; the worker's slot is free, and no try of
-- the call is used up.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 bytes of a turn's log · 3 count, then per slice: tenant · turn · fence · queue · position · ms until
--       it is looked at again · ms for which the call may rest in all, '': until
--       its deadline · '1' where calls behind it ran beside it · why, escaped
-- reply per slice: OK · ALREADY · CANCELLED (nothing written: settle it as cancelled) · STALE · GAP (a result before the position
--       is missing) · OVER (nothing written: it has rested for as long as it may, and is to be settled)
-- effect HSET turn (since when it rests, one note), ZADD timers and delayed, XACK. What is begun, tried and lost stays as it is:
--       nothing of the call was sent.
local now = clock(ARGV[1])
local log_max = num(ARGV[2])
local acked = {}

-- What the log says of rests of a call: since when, which, how many in a row, until when the last one is, and why. A rest that
-- follows another is the same note.
local function note(log, position, since, rests, due, why)
  local before, last = string.match(log or '', '^(.-);?([^;]*)$')
  if string.find(last, '^B%d+,' .. position .. ',') then
    since, rests = string.match(last, '^B(%d+),%d+,(%d+)')
    since, rests = num(since), num(rests) + 1
    log = before
  end
  local text = string.format('B%.0f,%d,%d,%.0f,%s', since, position, rests, due, why)
  if log and log ~= '' then text = log .. ';' .. text end
  return #text <= log_max and text or log or ''
end

local function rest(tenant, turn, fence, queue, position, delay, rests_max, beside, why)
  local tt = tenant .. ':' .. turn
  local key = turn_key(tt)
  local word, deadline, log = parkable(tt, key, fence, queue, position, acked)
  if word then return word end
  local at, since = string.match(call('HGET', key, TURN.rests) or '', '^(%d+) (%d+)$')
  since = num(at) == position and num(since) or nil
  if since and rests_max and now >= since + rests_max then return 'OVER' end
  -- What an operator holds up says nothing of the tool: it counts for no rest after failures.
  if not rests_max then since = now end
  since = since or now
  call('HDEL', key, TURN.fence, TURN.started, TURN.awaits)
  call('HSET', key, TURN.rests, string.format('%d %.0f', position, since), TURN.parked_fence, fence, TURN.has_history, '1',
    TURN.log, note(log, position, since, 1, math.min(now + delay, deadline), why))
  -- Rule 25: what was read beside it and dropped is not told as not executed.
  if beside == '1' then call('HSET', key, TURN.lost, now .. ' ' .. fence) end
  park(tenant, tt, fence, queue, now + delay, deadline, now, acked)
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[3]) do
  local at = i * 9 - 5
  replies[i] = word_of(rest, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], num(ARGV[at + 4]), num(ARGV[at + 5]),
    num(ARGV[at + 6]), ARGV[at + 7], ARGV[at + 8])
end
save_tenants()
for queue, entries in pairs(acked) do ack_and_trim(P .. queue, entries) end
return replies
