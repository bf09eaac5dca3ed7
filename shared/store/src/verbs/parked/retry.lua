#!lua flags=allow-oom
-- retry: parks a slice after a transient failure until its call may be tried again; the worker's slot is free.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 bytes of a turn's log · 3 count, then per slice: tenant · turn · fence · queue ·
--       position · delay ms · tries made · '1' where calls behind it ran beside it · '1' where the call stays begun (it never
--       begins again: whoever goes on with it finds out what came of it) · cause, escaped
-- reply per slice: OK · ALREADY · CANCELLED (nothing written: settle it as cancelled) · STALE · GAP (a result before
--       the position is missing)
-- effect HSET turn (progress and a note of the try; clears begun, so that the next try may begin), ZADD timers and delayed,
--       XACK
local now = clock(ARGV[1])
local log_max = num(ARGV[2])
local acked = {}

-- What the log of a turn says of a try that failed: when, which, and why. Of a question about a call that stays begun, the
-- try is 0: the call itself was not tried. A log that is full takes no more.
local function note(log, position, tries, delay, cause)
  local text = string.format('R%.0f,%d,%d,%.0f,%s', now, position, tries, delay, cause)
  if log then text = log .. ';' .. text end
  return #text <= log_max and text or log or ''
end

local function retry(tenant, turn, fence, queue, position, delay, tries, beside, begun, cause)
  local tt = tenant .. ':' .. turn
  local key = turn_key(tt)
  local word, deadline, log = parkable(tt, key, fence, queue, position, acked)
  if word then return word end
  local mark = begun == '1' and call('HGET', key, TURN.begun)
  call('HDEL', key, TURN.fence, TURN.begun, TURN.started, TURN.awaits)
  call('HSET', key, TURN.attempts, tries, TURN.attempts_at, position, TURN.parked_fence, fence, TURN.has_history, '1',
    TURN.log, note(log, position, begun == '1' and 0 or num(tries) % 1000, delay, cause))
  if mark then call('HSET', key, TURN.begun, mark) end
  if begun ~= '1' then call('HINCRBY', key, TURN.retries, 1) end
  -- Rule 25: what was read and dropped is not told as not executed.
  if beside == '1' then call('HSET', key, TURN.lost, now .. ' ' .. fence) end
  park(tenant, tt, fence, queue, now + delay, deadline, now, acked)
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[3]) do
  local at = i * 10 - 6
  replies[i] = word_of(retry, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], num(ARGV[at + 4]), num(ARGV[at + 5]), ARGV[at + 6],
    ARGV[at + 7], ARGV[at + 8], ARGV[at + 9])
end
save_tenants()
for queue, entries in pairs(acked) do ack_and_trim(P .. queue, entries) end
return replies
