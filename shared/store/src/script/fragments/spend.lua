-- What models use. A request's upper bound is debited from budgets of tokens and money before the model is asked, and is
-- corrected when its answer is written down. Needs the limits.
-- Tasks that are woken when a budget has room again: with their histories, each look costs something.
local WOKEN_MAX = 4

-- The tasks that wait for a budget, by when they were admitted.
local function short_key(counter) return P .. 'short:' .. counter end

-- Wakes some of those who wait for a budget: its timer is due now.
local function wake_short(counter, now)
  local first = call('ZRANGE', short_key(counter), 0, WOKEN_MAX - 1)
  for i = 1, #first do call('ZADD', TIMERS, 'XX', 'LT', now, 't:' .. first[i]) end
  if #first > 0 then call('ZREM', short_key(counter), unpack(first)) end
end

-- Corrects what a record's reservation debited to what was truly used. A window that has ended took its debit with it.
-- `reserved`: an id, and for each counter its name · unit (t: tokens, m: money) and amount · end of its window.
local function correct(reserved, tokens, money, now)
  for name, unit, amount, ends in string.gmatch(reserved, ' (%S+) ([tm])(%d+) (%d+)') do
    local limit, counter_name = string.match(name, '^([^@]+)@(.*)$')
    local text = call('HGET', counters_key(limit), counter_name)
    local used, until_ms, began
    if text then used, until_ms, began = read_counter(text, now) end
    if used and until_ms == num(ends) then
      used = math.max(used - num(amount) + (unit == 't' and tokens or money), 0)
      call('HSET', counters_key(limit), counter_name, struct.pack('<ddd', used, until_ms, began))
      wake_short(name, now)
    end
  end
end

-- Adds what one answer used to the day of its tenant and to its task, once for each request. `at` is where it stands in
-- ARGV: id of the request · agent · tokens in · tokens out · cost · the day's start · its end, ms · how long a day is kept,
-- ms · agents that a day tells apart.
local function spend(tt, key, at, now)
  local id, agent, input, output, cost, start, upto = unpack(ARGV, at, at + 6)
  local counted, reserved = unpack(call('HMGET', key, TURN.counted, TURN.reserved))
  if counted == id then return end
  call('HSET', key, TURN.counted, id)
  local day = usage_key(split(tt), now < num(upto) and start or upto)
  if call('HEXISTS', day, agent .. ':' .. USAGE.requests) == 0 and call('HLEN', day) >= 4 * num(ARGV[at + 8]) then agent = OTHERS end
  for _, of in ipairs({ '', agent .. ':' }) do
    call('HINCRBY', day, of .. USAGE.requests, 1)
    call('HINCRBY', day, of .. USAGE.input, input)
    call('HINCRBY', day, of .. USAGE.output, output)
    call('HINCRBY', day, of .. USAGE.cost, cost)
  end
  call('PEXPIRE', day, ARGV[at + 7])
  call('HINCRBY', key, TURN.spent_input, input)
  call('HINCRBY', key, TURN.spent_output, output)
  call('HINCRBY', key, TURN.spent_cost, cost)
  if reserved and string.match(reserved, '^%S+') == id then
    correct(reserved, num(input) + num(output), num(cost), now)
    call('HDEL', key, TURN.reserved)
  end
end
