-- Limits: counters that are data. No limit is known by name here: a row says how much a counter allows and how its window
-- ends, and each turn brings the counters that its calls debit, with the amounts.
local rows, counter_list = {}, {}
-- What turns debit, one after the other: where it ends, and per counter the counter and the amounts. A table for each turn,
-- and one for each of its counters, would cost more than all the rest. What a turn debits is known by where it begins;
-- `listed` are those with amounts that differ from call to call.
local debits, listed, debits_end = {}, {}, 0
local LIMITS = P .. 'limits'
-- A window that is longer is used again after a restart, although its last debits may be lost: who would wait a day?
local LOST_MS = 60000
-- Bytes of what the log says of one admission's debits: each of its calls' audit entries has them.
local DEBITS_NOTE_MAX = 1000
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

-- The counter that those share for whom there was none left, by limit.
local others = {}

-- Whether the logs of turns say what they debited.
local tells_debits

-- Reads the batch's rows from ARGV[at] on, and the counters that its turns debit. Whether logs say what turns debited ('1'
-- or ''), the count of rows, and per row: name ·
-- what a counter allows · length of a window ms ('' for a day, 'held' for places that calls hold while they are out) · the
-- day's start · its end · what becomes of the rest (wait, reject; shadow: nothing) · counters that it may have · what it
-- allows in words · the workers' slots that this follows from, or ''. The count of counters, and per counter: row · key · where its windows begin ms; each stands there once.
-- Answers the next index.
local function read_rows(at)
  tells_debits = ARGV[at] == '1'
  local count, n, row, last = num(ARGV[at + 1]), 0, nil, nil
  at = at + 2
  for i = 1, count do
    local name = ARGV[at]
    rows[i] = { name = name, max = num(ARGV[at + 1]), length = num(ARGV[at + 2]), held = ARGV[at + 2] == 'held',
      start = num(ARGV[at + 3]), upto = num(ARGV[at + 4]), reach = ARGV[at + 5], most = num(ARGV[at + 6]),
      words = ARGV[at + 7], slots = ARGV[at + 8] ~= '' and ARGV[at + 8], lanes = P .. 'lane:' .. name .. '@', counters = {},
      keys = {} }
    at = at + 9
  end
  local upto = at + 3 * num(ARGV[at])
  for i = at + 1, upto, 3 do
    local number, key = ARGV[i], ARGV[i + 1]
    -- Mostly they come limit by limit.
    if number ~= last then row, last = rows[num(number)], number end
    local c, of = { row = row, key = key, stagger = ARGV[i + 2], used = 0, ends = 0, began = 0 }, row.counters
    n = n + 1
    counter_list[n], of[#of + 1], row.keys[#of + 1] = c, c, key
    if key == OTHERS then others[row.name] = c end
  end
  return upto + 1
end

-- Whether a day of these rows does not hold `now`; the caller computes them anew if so.
local function rows_are_stale(now)
  for i = 1, #rows do
    local row = rows[i]
    if not row.length and not row.held and (now < row.start or now >= row.upto) then return true end
  end
  return false
end

-- The name that a counter has everywhere. Few are asked for it.
local function name_of(c)
  c.name = c.name or c.row.name .. '@' .. c.key
  return c.name
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

-- Reads what one turn's calls debit at ARGV[at]: per counter three bytes with its number, and one with what each call debits;
-- 255 where that is no small number, or not the same for all: then it stands behind, in words (see amounts_of), in the same
-- order. Answers where in `debits` it begins, or nil where there is none, and the next index.
local byte = string.byte
local function read_debits(at)
  local text, from, n = ARGV[at], debits_end + 1, debits_end + 1
  at = at + 1
  if text == '' then return nil, at end
  for j = 1, #text, 4 do
    local high, middle, low, amounts = byte(text, j, j + 3)
    if amounts == 255 then
      amounts, at = amounts_of(ARGV[at]), at + 1
      if type(amounts) == 'table' then listed[from] = true end
    end
    debits[n + 1], debits[n + 2], n = counter_list[high * 65536 + middle * 256 + low], amounts, n + 2
  end
  debits[from], debits_end = n, n
  return from, at
end

-- What a counter says: what is used, when that ends, when it began; nil where a hand has changed it.
local function read_counter(text, now)
  if #text ~= 24 then return nil end
  local used, ends, began = struct.unpack('<ddd', text)
  if used >= 0 and ends >= 0 and ends < now + 400 * 86400000 and began >= 0 and began <= ends then return used, ends, began end
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
    if row.length then
      c.used, c.ends = 0, window_end(now, num(c.stagger), row.length, c.ends)
      c.began = math.min(now, c.ends - row.length)
    elseif c.ends > row.start and c.ends < row.upto then
      -- The time zone has changed: the old day goes on to the end of this one.
      c.ends = row.upto
    else
      c.used, c.ends, c.began = 0, row.upto, row.start
    end
    if odd then c.used, c.odd = row.max, true end
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
    if holds and string.find(' ' .. holds, ' ' .. name_of(c) .. ' ', 1, true) then
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
  local key = held_key(name_of(c))
  local held = redis.pcall('ZCARD', key)
  c.ends, c.began = now + LOOK_MS, now
  -- Something else is there (rule 18): it costs those who need one of these places, and nobody else.
  if type(held) ~= 'number' then
    c.used = c.row.max
    return
  end
  c.used = held
  if c.used >= c.row.max then take_back_places(c, key, now) end
  if epoch_ms > 0 and now < epoch_ms + lease then c.used = math.max(c.used, c.row.max) end
end

-- What those share that come when the limit of a row has as many counters as it may.
local function others_of(row, now)
  local c = others[row.name]
  if not c then
    c = { row = row, key = OTHERS, stagger = 0, used = 0, ends = 0, began = 0 }
    others[row.name], counter_list[#counter_list + 1] = c, c
    open_window(c, call('HGET', counters_key(row.name), OTHERS), now)
  end
  return c
end

-- Reads the counters of a row, in few commands.
local function load_row(row, now)
  local of, key, room = row.counters, counters_key(row.name), nil
  for from = 1, #of, 500 do
    local upto = math.min(from + 499, #of)
    local found = redis.pcall('HMGET', key, unpack(row.keys, from, upto))
    -- Something else is there (rule 18): it costs the calls of this limit, and no others.
    if found.err then
      for i = from, upto do of[i].used, of[i].ends, of[i].began = row.max, now + LOOK_MS, now end
    end
    for i = from, found.err and from - 1 or upto do
      local c, text = of[i], found[i - from + 1]
      if not text then
        room = (room or row.most - call('HLEN', key)) - 1
        -- Nobody can make more of them than there may be: the rest share one, which allows as much as one does.
        if room < 0 and c.key ~= OTHERS then c.shared = others_of(row, now) end
      end
      open_window(c, text, now)
    end
  end
end

-- The place of the first turn on a lane; nil where nobody waits. What is no lane stops nobody (rule 18).
local function first_on(lane)
  local first = redis.pcall('ZRANGE', lane, 0, 0, 'WITHSCORES')
  return not first.err and num(first[2]) or nil
end

-- Reads the counters of a batch, and the place of the first turn on each of their lanes.
local function load_counters(now, epoch_ms, lease) -- rarely
  for i = 1, #rows do
    local row = rows[i]
    if not row.held then load_row(row, now) else
      for j = 1, #row.counters do load_places(row.counters[j], now, epoch_ms, lease) end
    end
  end
  local lanes = {}
  for i = 1, #counter_list do lanes[i] = counter_list[i].row.lanes .. counter_list[i].key end
  for from = 1, #lanes, 500 do
    local upto = math.min(from + 499, #lanes)
    -- Mostly nothing waits, and one command says so for all.
    if call('EXISTS', unpack(lanes, from, upto)) > 0 then
      for i = from, upto do counter_list[i].first = first_on(lanes[i]) end
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
local function fit_one(c, amounts, k, epoch_ms)
  local left, sum = left_of(c, epoch_ms), 0
  if type(amounts) == 'number' then return amounts == 0 and k or math.min(k, math.floor(left / amounts)) end
  for i = 1, k do
    local amount = amounts[i]
    if not amount or sum + amount > left then return i - 1 end
    sum = sum + amount
  end
  return k
end

-- What each of the first `k` calls debits of a counter that several of the turn's counters share, with what the ones before
-- debit of it.
local function with_those_before(amounts, before, k)
  local all = {}
  for i = 1, k do
    local own = amounts
    if type(amounts) == 'table' then own = amounts[i] end
    all[i] = own and own + (before and before[i] or 0)
  end
  return all
end

-- How many of the first `k` calls fit all counters, and which debit stops the next one. `told` gets the names of limits
-- in whose shadow they would have been stopped, and `notes`: which calls that is, where the first of them is `first`.
local function fit(from, k, epoch_ms, told) -- rarely
  local stop, of_shared
  for i = from + 1, debits[from], 2 do
    local c, amounts = debits[i], debits[i + 1]
    local wanted = amounts
    if c.shared then
      of_shared = of_shared or {}
      wanted = with_those_before(amounts, of_shared[c.shared], k)
      of_shared[c.shared] = wanted
    end
    local n = fit_one(c, wanted, k, epoch_ms)
    if n < k then
      if c.row.reach == 'shadow' then
        local name = c.row.name
        told[#told + 1] = name
        local note = string.format('%d-%d %s', (told.first or 0) + n, (told.first or 0) + k, name)
        told.notes = told.notes and told.notes .. ',' .. note or note
      else
        k, stop = n, { c = c, amounts = amounts }
      end
    end
  end
  return k, stop
end

-- Of what a turn debits, the places that calls hold; nil where there are none.
local function places_in(from)
  local begins, n = debits_end + 1, debits_end + 1
  for i = from + 1, debits[from], 2 do
    if debits[i].row.held then debits[n + 1], debits[n + 2], n = debits[i], debits[i + 1], n + 2 end
  end
  if n == begins then return nil end
  debits[begins], debits_end = n, n
  return begins
end

-- The debit whose counter others wait for already who were admitted before: the turn goes behind them. A turn that is
-- new comes after all (`place` is nil); on the lane `own` it is the first itself. Whoever was admitted first of all that
-- wait is behind nobody: else turns that need several counters would give way to each other for ever.
local function behind(from, own, place)
  for i = from + 1, debits[from], 2 do
    local c, first = debits[i], debits[i + 1]
    if type(first) == 'table' then first = first[1] end
    -- A limit in shadow holds nobody up, also where those stand in its line who come back for its places.
    if c.first and c.row.reach ~= 'shadow' and (not place or c.first < place) and name_of(c) ~= own and first ~= 0 then
      return { c = c, amounts = debits[i + 1] }
    end
  end
end

-- What `behind`, `fit` and `debit_counters` do for a turn whose `n` calls all go, as mostly: every counter has room for them,
-- is waited for by nobody, and has a window. Answers whether it is so; if not, nothing was debited.
local function debit_all(from, n, epoch_ms)
  if listed[from] then return false end
  local upto = debits[from]
  for i = from + 1, upto, 2 do
    local c = debits[i]
    local row = c.row
    if c.first or c.shared or row.held or c.used + debits[i + 1] * n > row.max
      or epoch_ms > c.began and row.length and row.length <= LOST_MS then return false end
  end
  for i = from + 1, upto, 2 do
    local c, amount = debits[i], debits[i + 1]
    if amount > 0 then c.used, c.debited = c.used + amount * n, true end
  end
  return true
end

-- Debits every counter for the first `k` calls of a turn. Answers the places that these hold now, as its record keeps
-- them: counter, number, counter, number…; nil where there are none.
local function debit_counters(tt, from, k, now)
  local holds
  for i = from + 1, debits[from], 2 do
    local c, amounts, sum = debits[i].shared or debits[i], debits[i + 1], 0
    if type(amounts) == 'number' then sum = amounts * k else
      for j = 1, k do sum = sum + (amounts[j] or 0) end
    end
    c.used, c.debited = c.used + sum, c.debited or sum > 0
    if c.row.held and sum > 0 then
      holds = (holds and holds .. ' ' or '') .. name_of(c) .. ' ' .. sum
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
  call('ZADD', P .. 'lane:' .. name_of(c), seq, tt)
  c.first = math.min(c.first or seq, seq)
  call('ZADD', TIMERS, 'LT', due, 'l:' .. name_of(c))
end

-- When whoever waits for a counter looks again, should nobody wake it before.
local function next_look(c, now) return math.min((c.shared or c).ends, now + WINDOW_LOOK_MS) end

-- What the log of a turn says of a wait: since when, for which limit, and until when at least (0: until a place is free);
-- behind that, the slots that the workers had, where a part of them was too few.
local function wait_note(now_text, c)
  local note = string.format('L%s,%s,%.0f', now_text, c.row.name, c.row.held and 0 or (c.shared or c).ends)
  return c.row.slots and note .. ',' .. c.row.slots or note
end

-- What the log says behind an admission: the slots that the workers had, where it holds places of a part of them.
local function slots_note(from)
  for i = from + 1, debits[from], 2 do
    local slots = debits[i].row.slots
    if slots then return ';P' .. slots end
  end
  return ''
end

-- What the log says behind an admission of `k` calls, for auditors: per counter with a window that stops calls what these
-- debited, what is used with them, what it allows, when its window ends, and when it began; of a turn with many counters not
-- all are told.
local function debits_note(from, k) -- rarely
  local note = ''
  if not from then return ';D0' end
  for i = from + 1, debits[from], 2 do
    local of, amounts, sum = debits[i], debits[i + 1], 0
    if type(amounts) == 'number' then sum = amounts * k else
      for j = 1, k do sum = sum + (amounts[j] or 0) end
    end
    if sum > 0 and not of.row.held and of.row.reach ~= 'shadow' then
      local c = of.shared or of
      local one = string.format(';D%s,%.0f,%.0f,%.0f,%.0f,%.0f', name_of(c), sum, c.used, of.row.max, c.ends, c.began)
      if #note + #one > DEBITS_NOTE_MAX then return note .. ';D' end
      note = note .. one
    end
  end
  return note ~= '' and note or ';D0'
end

local function save_counters()
  local names = {}
  for i = 1, #counter_list do
    local c, row = counter_list[i], counter_list[i].row
    if c.odd then put_aside('counters', name_of(c), 'it could not be read: it counts as used up until its window ends') end
    for from = 1, c.taken and #c.taken or 0, 1000 do
      call('ZADD', held_key(name_of(c)), unpack(c.taken, from, math.min(from + 999, #c.taken)))
    end
    if c.debited or c.odd then
      local of, used, ends = row.changed, c.used, c.ends
      if not of then
        of, names[#names + 1] = {}, row.name
        row.changed = of
      end
      -- Of places only that there are some, for lookers-on: they are counted where they are held.
      if row.held then used, ends = 0, c.began end
      local n = #of
      of[n + 1], of[n + 2] = c.key, struct.pack('<ddd', used, ends, c.began)
    end
  end
  if #names > 0 then call('SADD', LIMITS, unpack(names)) end
  for i = 1, #rows do
    local row = rows[i]
    local of = row.changed or {}
    for from = 1, #of, 1000 do
      call('HSET', counters_key(row.name), unpack(of, from, math.min(from + 999, #of)))
    end
  end
end
