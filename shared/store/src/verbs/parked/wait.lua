#!lua flags=allow-oom
-- wait: parks a slice whose next call has begun work that goes on elsewhere (a turn, a task) until that has ended; the
-- worker's slot is free.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per slice: tenant · turn · fence · queue · position · the tenant's turn or task
--       that it waits for, or '' · ms that it waits at most · '1' where its call has begun that · '1' where calls behind it ran
--       beside it
-- reply per slice: OK · ALREADY · CANCELLED (nothing written: settle it as cancelled) · STALE · GAP (a result before
--       the position is missing)
-- effect HSET turn (awaits, waited; what is known of tries and crashes is of work that has come further since), ZADD timers
--       and delayed, XACK; HSET entered (it is only expected in its session again); where nothing has begun, ZREM held
local now = clock(ARGV[1])
local acked = {}

-- A call that waits for somebody else's has begun nothing: it is decided about anew where it begins, and is only expected in its
-- session until then.
local function leave_again(key, turn, position)
  local at, session = string.match(call('HGET', key, TURN.entered) or '', '^(%d+) (.+)$')
  if not at or num(at) ~= position then return end
  local entered, by = entered_key(session), turn .. '/' .. at
  local number, changes = string.match(call('HGET', entered, by) or '', '^(%d+) ([SC].*)$')
  if number then call('HSET', entered, by, string.format('%s e%d %s', number, now, changes)) end
  call('HDEL', key, TURN.entered)
end

local function wait(tenant, turn, fence, queue, position, awaits, most, has_begun, beside)
  local tt = tenant .. ':' .. turn
  local key = turn_key(tt)
  local word, deadline = parkable(tt, key, fence, queue, position, acked)
  if word then return word end
  call('HDEL', key, TURN.fence, TURN.begun, TURN.started, TURN.attempts, TURN.attempts_at, TURN.crashes)
  call('HSET', key, TURN.parked_fence, fence, TURN.has_history, '1', TURN.awaits, awaits)
  -- One that waits for somebody else's call has begun nothing, and nothing of it is cancelled with it.
  if has_begun then call('HSET', key, TURN.waited, position) else alone(leave_again, key, turn, position) end
  -- Rule 25: what ran beside it and was dropped is not told as not executed.
  if beside then call('HSET', key, TURN.lost, string.format('%d %s', now, fence)) end
  -- What has ended already wakes nobody any more; nor does a budget whose list it is not on any more.
  local ended = awaits ~= '' and call('EXISTS', done_key(tenant .. ':' .. awaits)) == 1
  local short = awaits == '' and call('HGET', key, TURN.short)
  if short then
    ended = not call('ZSCORE', short_key(short), tt)
    -- Looked at once: from then on it waits for something else, such as a provider that rests.
    if ended then call('HDEL', key, TURN.short) end
  end
  park(tenant, tt, fence, queue, ended and now or now + most, deadline, now, acked)
  if not has_begun and not ended then alone(give_places, tt, key, position, now) end
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[2]) do
  local at = i * 9 - 6
  replies[i] = word_of(wait, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], num(ARGV[at + 4]), ARGV[at + 5], num(ARGV[at + 6]),
    ARGV[at + 7] == '1', ARGV[at + 8] == '1')
end
save_tenants()
for queue, entries in pairs(acked) do ack_and_trim(P .. queue, entries) end
return replies
