#!lua flags=allow-oom
-- reserve: debits what a request to a model may use at most from budgets of tokens and money, before the model is asked,
-- under the fence of its task's slice.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:task · 3 fence · 4 number of the request in its task · 5 '1' to give back what this
--       request has debited: it was not carried out · 6 lease ms · rows of limits and counters (see read_rows) · what it
--       debits of them (see read_debits) · per counter what it counts (t: tokens, m: money) · at last, what Redis called
--       itself when the caller connected, or ''
-- reply {OK, now, limits in whose shadow it was…} · {STALE, now} · {DAY_STALE, now} · {SHORT, now, what becomes of the task
--       (wait; reject; never: one request may use more than the limit allows), limit, what it allows in words, used,
--       amount, end of its window ms, when whoever waits looks again ms, '1' if it did not wait for this one before}
-- effect HSET counters and turn (reserved, short, log), ZADD short, SADD limits
-- Bytes of notes: most of LOG_BYTES_MAX.
local NOTES_MAX = 3500
local now = clock(ARGV[1])
local tt, fence, lease = ARGV[2], ARGV[3], num(ARGV[6])
local key, id = turn_key(tt), fence .. '/' .. ARGV[4]
local in_force, reserved, short, admitted_ms, log = unpack(call('HMGET', key, TURN.fence, TURN.reserved, TURN.short,
  TURN.admitted_ms, TURN.log))
if in_force ~= fence then return { 'STALE', now } end
local is_mine = reserved and string.match(reserved, '^%S+') == id
if ARGV[5] == '1' then
  if is_mine then
    correct(reserved, 0, 0, now)
    call('HDEL', key, TURN.reserved)
  end
  return { 'OK', now }
end
-- A repeated reservation debits nothing more.
if is_mine then return { 'OK', now } end
local epoch_ms = epoch(now, ARGV[#ARGV])
local at = read_rows(7)
if rows_are_stale(now) then return { 'DAY_STALE', now } end
local from, units = read_debits(at)
load_counters(now, epoch_ms, lease)
local told = {}
local k, stop = fit(from, 1, epoch_ms, told)

local function show(number) return string.format('%.0f', number) end

if k < 1 then
  local row, c, amount = stop.c.row, stop.c.shared or stop.c, stop.amounts
  local reach, look = amount > row.max and 'never' or row.reach, next_look(stop.c, now)
  local is_news = short ~= name_of(c)
  if reach == 'wait' then
    -- Whoever gives something back takes the first off this list (see `wait`).
    call('ZADD', short_key(name_of(c)), num(admitted_ms or 0), tt)
    call('PEXPIRE', short_key(name_of(c)), look - now + 60000)
    if is_news then
      log = (log and log .. ';' or '') .. wait_note(tostring(now), c)
      call('HSET', key, TURN.short, name_of(c))
      if #log <= NOTES_MAX then call('HSET', key, TURN.log, log) end
    end
  end
  return { 'SHORT', now, reach, row.name, row.words, show(c.used), show(amount), show(c.ends), show(look), is_news and '1' or '' }
end
if short then
  call('ZREM', short_key(short), tt)
  call('HDEL', key, TURN.short)
end
debit_counters(tt, from, 1, now)
save_counters()
-- What stood there is of a request whose answer nobody has written down: it may have been carried out, and paid for. So
-- its debit stays where it is, as if all of it had been used.
reserved = id
for i = from + 1, debits[from], 2 do
  local c = debits[i].shared or debits[i]
  reserved = reserved .. ' ' .. name_of(c) .. ' ' .. ARGV[units] .. show(debits[i + 1]) .. ' ' .. show(c.ends)
  units = units + 1
end
call('HSET', key, TURN.reserved, reserved)
return { 'OK', now, unpack(told) }
