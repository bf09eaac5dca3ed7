#!lua flags=allow-oom
-- prune: forgets the budgets of agents that have been idle for a day after their day ended: they say nothing any more.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 cursor (0 begins) · 3 the limit whose counters were looked at last ('': none yet) · 4 the
--       cursor in them (0: they are done)
-- reply {next cursor (0: the round is complete), how many were forgotten, limit, cursor in its counters}
-- effect HDEL budgets and counters, SREM limits; ZADD timers of cascades that have none
local now = clock(ARGV[1])

-- Redis keeps a hash of up to 512 short fields as a list, and looks through it for each field that is asked for, until there
-- is a field of more than 64 bytes: then it is a table, and stays one. So such a field comes and goes.
local function as_table(key)
  if call('HLEN', key) < 16 then return end
  local long = string.rep(' ', 65)
  call('HSET', key, long, '')
  call('HDEL', key, long)
end

-- What is to end with what began it has a timer, whoever took it.
local marks = redis.pcall('HSCAN', P .. 'cascades', 0, 'COUNT', 100)
for i = 1, marks.err and 0 or #marks[2], 2 do
  if split(marks[2][i]) then call('ZADD', TIMERS, 'NX', now, 'c:' .. marks[2][i]) end
end

as_table(P .. 'budgets')
local found = call('HSCAN', P .. 'budgets', ARGV[2], 'COUNT', 200)
local old = {}
for i = 1, #found[2], 2 do
  local name, text = found[2][i], found[2][i + 1]
  if #text == 40 then
    local _, tick_end, _, day_end = struct.unpack('<dddd', text)
    if math.max(tick_end, day_end) + 86400000 <= now and call('EXISTS', P .. 'lane:' .. name) == 0 then old[#old + 1] = name end
  end
end
for from = 1, #old, 500 do call('HDEL', P .. 'budgets', unpack(old, from, math.min(from + 499, #old))) end

-- Counters of one limit whose windows have ended; the limits one after the other, also those that nobody has any more.
local limit, cursor = ARGV[3], ARGV[4]
if cursor == '0' then
  local names = call('SMEMBERS', P .. 'limits')
  table.sort(names)
  local last = limit
  limit = ''
  for i = #names, 1, -1 do
    if names[i] > last then limit = names[i] end
  end
end
local function prune_counters()
  local key, ended = P .. 'counters:' .. limit, {}
  as_table(key)
  local counters = call('HSCAN', key, cursor, 'COUNT', 200)
  for i = 1, #counters[2], 2 do
    local name, text = counters[2][i], counters[2][i + 1]
    if #text == 24 then
      local _, ends = struct.unpack('<dd', text)
      -- Of places it says that there are some.
      if ends + 60000 <= now and call('EXISTS', P .. 'held:' .. limit .. '@' .. name) == 0 then ended[#ended + 1] = name end
    end
  end
  for from = 1, #ended, 500 do call('HDEL', key, unpack(ended, from, math.min(from + 499, #ended))) end
  if call('EXISTS', key) == 0 then call('SREM', P .. 'limits', limit) end
  return counters[1]
end
if limit ~= '' then
  -- What is something else by now (rule 18) keeps no other limit from being looked at.
  local done, next_cursor = alone(prune_counters)
  cursor = done and next_cursor or '0'
end
return { found[1], tostring(#old), limit, cursor }
