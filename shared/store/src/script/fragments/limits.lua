-- Limits: counters that are data. No limit is known by name here: a row says how much a counter allows and how its window
-- ends, and each turn brings the counters that its calls debit, with the amounts.
local rows, counters, counter_list = {}, {}, {}
local LIMITS = P .. 'limits'
-- A window that is longer is used again after a restart, although its last debits may be lost: who would wait a day?
local LOST_MS = 60000
-- The counter of all that come when a limit has as many as it may.
local OTHERS = '~'
-- Places that calls hold at the same time have no window: whoever waits for one is woken when one is given back, and looks
-- again after this long in any case, ms.
local LOOK_MS = 5000
-- A window may be long, and its limit be raised or taken away meanwhile: so often whoever waits looks whether it was, ms.
-- With 100,000 lanes of full counters that is some 330 looks a second.
local WINDOW_LOOK_MS = 300000

local function counters_key(limit) return P .. 'counters:' .. limit end

local function held_key(counter) return P .. 'held:' .. counter end

-- Reads the batch's rows from ARGV[at] on: their count, and per row: name · what a counter allows · length of a window ms
-- ('' for a day, 'held' for places that calls hold while they are out) · the day's start · its end · what becomes of the
-- rest (wait, reject; shadow: nothing) · counters that it may have · what it allows in words. Answers the next index.
local function read_rows(at)
  local count = num(ARGV[at])
  at = at + 1
  for i = 1, count do
    rows[i] = { name = ARGV[at], max = num(ARGV[at + 1]), length = num(ARGV[at + 2]),
      held = ARGV[at + 2] == 'held', start = num(ARGV[at + 3]),
      upto = num(ARGV[at + 4]), reach = ARGV[at + 5], most = num(ARGV[at + 6]), words = ARGV[at + 7] }
    at = at + 8
  end
  return at
end

-- Whether a day of these rows does not hold `now`; the caller computes them anew if so.
local function rows_are_stale(now)
  for i = 1, #rows do
    local row = rows[i]
    if not row.length and not row.held and (now < row.start or now >= row.upto) then return true end
  end
  return false
end

local function counter(row, key, stagger)
  local name = row.name .. '@' .. key
  local c = counters[name]
  if not c then
    c = { name = name, key = key, row = row, stagger = stagger, used = 0, ends = 0, began = 0 }
    counters[name], counter_list[#counter_list + 1] = c, c
  end
  return c
end

-- What each call debits: one amount for all of them ('1'), or one for each, with commas between; '-' where the call has
-- none and must have one.
local function amounts_of(text)
  local all = num(text)
  if all then return all end
  local amounts, n = {}, 0
  for amount in string.gmatch(text, '[^,]+') do
    n = n + 1
    amounts[n] = num(amount) or false
  end
  return amounts
end

-- Reads the counters of one turn's calls from ARGV[at] on: their count, and per counter: row · key · where its windows
-- begin ms · amounts. Answers them, or nil where there are none, and the next index.
local function read_debits(at)
  local count = num(ARGV[at])
  at = at + 1
  if count == 0 then return nil, at end
  local debits = {}
  for i = 1, count do
    local c = counter(rows[num(ARGV[at])], ARGV[at + 1], num(ARGV[at + 2]))
    debits[i] = { c = c, amounts = amounts_of(ARGV[at + 3]) }
    at = at + 4
  end
  return debits, at
end

-- What a counter says: what is used, when that ends, when it began; nil where a hand has changed it.
local function read_counter(text, now)
  if #text ~= 24 then return nil end
  local used, ends, began = struct.unpack('<ddd', text)
  if used >= 0 and ends >= 0 and ends < now + 400 * 86400000 then return used, ends, began end
end

-- Opens a counter's window where the last one has ended (rule 1). One that a hand has changed counts as used up until
-- then, and people are told.
local function open_window(c, text, now)
  local row, odd = c.row, false
  if text then
    local used, ends, began = read_counter(text, now)
    if used then c.used, c.ends, c.began = used, ends, began else odd = true end
  end
  if odd or now >= c.ends then
    c.used, c.odd = odd and row.max or 0, odd
    if row.length then
      c.ends = now - (now - c.stagger) % row.length + row.length
      c.began = c.ends - row.length
    else
      c.ends, c.began = row.upto, row.start
    end
  end
end

-- Places of records that are gone, or that hold them no longer (a hand, or a build that knows no places), would be taken
-- for ever. So where all are taken, some are looked at, those first that were not looked at for the longest time; a
-- script looks at so many.
local looks_left = 64
local function take_back_places(c, key, now)
  local oldest = looks_left > 0 and call('ZRANGE', key, 0, 15, 'WITHSCORES') or {}
  for i = 1, #oldest, 2 do
    if num(oldest[i + 1]) > now - LOOK_MS then return end
    looks_left = looks_left - 1
    local tt = string.match(oldest[i], '^(.*)/%d+$')
    local holds = tt and call('HGET', turn_key(tt), TURN.holds)
    if holds and string.find(' ' .. holds, ' ' .. c.name .. ' ', 1, true) then
      call('ZADD', key, now, oldest[i])
    else
      call('ZREM', key, oldest[i])
      c.used = c.used - 1
    end
  end
end

-- How many places of a counter are taken. Rule 8: all of them for a lease after a restart of Redis, for whoever holds
-- one that Redis has forgotten may not have heard.
local function load_places(c, now, epoch_ms, lease)
  local key = held_key(c.name)
  c.used, c.ends, c.began = call('ZCARD', key), now + LOOK_MS, now
  if c.used >= c.row.max then take_back_places(c, key, now) end
  if epoch_ms > 0 and now < epoch_ms + lease then c.used = math.max(c.used, c.row.max) end
end

-- Reads the counters of a batch, each limit's in few commands, and the place of the first turn on each of their lanes.
local function load_counters(now, epoch_ms, lease) -- rarely
  local by_limit, lanes = {}, {}
  for i = 1, #counter_list do
    local c = counter_list[i]
    if c.row.held then load_places(c, now, epoch_ms, lease) else
      local of = by_limit[c.row.name] or {}
      of[#of + 1], by_limit[c.row.name] = c, of
    end
    lanes[i] = P .. 'lane:' .. c.name
  end
  for limit, of in pairs(by_limit) do
    local key, room, others = counters_key(limit), nil, nil
    for from = 1, #of, 500 do
      local upto, keys = math.min(from + 499, #of), {}
      for i = from, upto do keys[#keys + 1] = of[i].key end
      local found = call('HMGET', key, unpack(keys))
      for i = from, upto do
        local c, text = of[i], found[i - from + 1]
        if not text then
          room = (room or c.row.most - call('HLEN', key)) - 1
          -- Nobody can make more of them than there may be: the rest share one, which allows as much as one does.
          if room < 0 and c.key ~= OTHERS then
            if not others then
              others = counter(c.row, OTHERS, 0)
              open_window(others, call('HGET', key, OTHERS), now)
            end
            c.shared = others
          end
        end
        open_window(c, text, now)
      end
    end
  end
  for from = 1, #lanes, 500 do
    local upto = math.min(from + 499, #lanes)
    -- Mostly nothing waits, and one command says so for all.
    if call('EXISTS', unpack(lanes, from, upto)) > 0 then
      for i = from, upto do counter_list[i].first = num(call('ZRANGE', lanes[i], 0, 0, 'WITHSCORES')[2]) end
    end
  end
end

-- How much a counter still allows. Rule 8: nothing in a window that began before Redis restarted, for its last debits
-- may be lost.
local function left_of(c, epoch_ms)
  -- What is shared may be counted for tenants with numbers of their own: each goes by its own.
  local max = c.row.max
  c = c.shared or c
  if c.row.length and c.row.length <= LOST_MS and c.began < epoch_ms then return 0 end
  return math.max(max - c.used, 0)
end

-- How many of the first `k` calls fit one counter.
local function fit_one(debit, k, epoch_ms)
  local amounts, left, sum = debit.amounts, left_of(debit.c, epoch_ms), 0
  if type(amounts) == 'number' then return amounts == 0 and k or math.min(k, math.floor(left / amounts)) end
  for i = 1, k do
    local amount = amounts[i]
    if not amount or sum + amount > left then return i - 1 end
    sum = sum + amount
  end
  return k
end

-- How many of the first `k` calls fit all counters, and which debit stops the next one. `told` gets the names of limits
-- in whose shadow they would have been stopped, and `notes`: which calls that is, where the first of them is `first`.
local function fit(debits, k, epoch_ms, told) -- rarely
  local stop
  for i = 1, #debits do
    local n = fit_one(debits[i], k, epoch_ms)
    if n < k then
      if debits[i].c.row.reach == 'shadow' then
        local name = debits[i].c.row.name
        told[#told + 1] = name
        local note = string.format('%d-%d %s', (told.first or 0) + n, (told.first or 0) + k, name)
        told.notes = told.notes and told.notes .. ',' .. note or note
      else
        k, stop = n, debits[i]
      end
    end
  end
  return k, stop
end

-- The debit whose counter others wait for already who were admitted before: the turn goes behind them. A turn that is
-- new comes after all (`place` is nil); on the lane `own` it is the first itself. Whoever was admitted first of all that
-- wait is behind nobody: else turns that need several counters would give way to each other for ever.
local function behind(debits, own, place)
  for i = 1, #debits do
    local c, first = debits[i].c, debits[i].amounts
    if type(first) == 'table' then first = first[1] end
    if c.first and (not place or c.first < place) and c.name ~= own and first ~= 0 then return debits[i] end
  end
end

-- Debits every counter for the first `k` calls of a turn. Answers the places that these hold now, as its record keeps
-- them: counter, number, counter, number…; nil where there are none.
local function debit_counters(tt, debits, k, now)
  local holds
  for i = 1, #debits do
    local c, amounts, sum = debits[i].c.shared or debits[i].c, debits[i].amounts, 0
    if type(amounts) == 'number' then sum = amounts * k else
      for j = 1, k do sum = sum + (amounts[j] or 0) end
    end
    c.used, c.debited = c.used + sum, c.debited or sum > 0
    if c.row.held and sum > 0 then
      holds = (holds and holds .. ' ' or '') .. c.name .. ' ' .. sum
      c.taken = c.taken or {}
      for j = 1, sum do
        local n = #c.taken
        c.taken[n + 1], c.taken[n + 2] = now, tt .. '/' .. j
      end
    end
  end
  return holds
end

-- What a stop means for the first of `n` calls: how many end, for which reason, and what their results say; or nil where
-- they wait.
local function refusal_of(stop, n, epoch_ms)
  local amounts, row, c = stop.amounts, stop.c.row, stop.c.shared or stop.c
  local uniform = type(amounts) == 'number'
  local first = amounts
  if not uniform then first = amounts[1] end
  local reason = not first and 'no_amount' or first > row.max and 'over_limit' or row.reach == 'reject' and 'limit_reached'
  if not reason then return nil end
  local ends, left = uniform and n or 1, left_of(stop.c, epoch_ms)
  if not uniform and reason == 'limit_reached' then
    while ends < n and amounts[ends + 1] and amounts[ends + 1] > left do ends = ends + 1 end
  end
  return ends, reason, string.format('%.0f %s %s', row.held and 0 or c.ends, row.name, row.words)
end

-- Puts a turn on the lane of the counter that stopped it, in admission order, and arms the lane's timer.
local function wait_for(c, tt, seq, due)
  call('ZADD', P .. 'lane:' .. c.name, seq, tt)
  c.first = math.min(c.first or seq, seq)
  call('ZADD', TIMERS, 'LT', due, 'l:' .. c.name)
end

-- When whoever waits for a counter looks again, should nobody wake it before.
local function next_look(c, now) return math.min((c.shared or c).ends, now + WINDOW_LOOK_MS) end

-- What the log of a turn says of a wait: since when, for which limit, and until when at least (0: until a place is free).
local function wait_note(now_text, c)
  return string.format('L%s,%s,%.0f', now_text, c.row.name, c.row.held and 0 or (c.shared or c).ends)
end

local function save_counters()
  local by_limit = {}
  for i = 1, #counter_list do
    local c = counter_list[i]
    if c.odd then put_aside('counters', c.name, 'it could not be read: it counts as used up until its window ends') end
    for from = 1, c.taken and #c.taken or 0, 1000 do
      call('ZADD', held_key(c.name), unpack(c.taken, from, math.min(from + 999, #c.taken)))
    end
    if c.debited or c.odd then
      local of, used, ends = by_limit[c.row.name] or {}, c.used, c.ends
      -- Of places only that there are some, for lookers-on: they are counted where they are held.
      if c.row.held then used, ends = 0, c.began end
      of[#of + 1], of[#of + 2], by_limit[c.row.name] = c.key, struct.pack('<ddd', used, ends, c.began), of
    end
  end
  for limit, of in pairs(by_limit) do
    call('SADD', LIMITS, limit)
    for from = 1, #of, 1000 do call('HSET', counters_key(limit), unpack(of, from, math.min(from + 999, #of))) end
  end
end
