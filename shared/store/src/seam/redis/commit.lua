#!lua flags=allow-oom
-- Commits a batch of transactions, each as a whole or not at all.
-- core/src/transaction.rs defines guards and writes. encode.rs writes the arguments, reply.rs reads the reply.
--
-- KEYS   1 the shard's prefix; all keys in the arguments begin with this prefix
-- ARGV   1 run_id of the server that the caller's connection was made to, or '' · 2 lease in ms
--        3 the last epoch that the caller knows, or 0
--        4 number of counter groups, then for each: key of the limit's counters · number of names · names
--        then number of tenants with inboxes, then for each: tenant · number of inboxes · inboxes
--        then the transactions, each: number of words that follow · version and a blank · dedupe key or '' ·
--        '1' if records and entries get the stamp (the new amounts of debited counters), or '' ·
--        words of guards and writes, each followed by its own arguments
--        Arguments refer to counters and inboxes by their position in these lists, from 1.
-- Reply  shard time · epoch · begin of the epoch · generation of the policy · generation of the settings ·
--        1 if memory is short, or 0 · then for each transaction one of:
--        1 (committed) · 2 (already committed) · an entry (committed, and enqueued this entry) ·
--        {'committed', entries, shadowed counters} · a conflict: {word, …}

-- The functions of guards and writes, by word. Each gets the index of its first argument in ARGV. Each returns the
-- index of the next word, and a conflict or nil.
local words = {}
-- Each batch sets these variables, because a library is loaded once and sees only `redis` while it is loaded.
local call, try, acl_check, pack, unpack_struct, format, unpack, max_of, min_of, floor
local ARGV, P, META, TIMERS, BUILT_IN, lease
local GROUP, TIME, NOT_HELD = 'workers', { 'time' }, { 'not_held' }
-- Lua limits the number of arguments of one command, so a longer list is split into parts of this length.
local MANY = 1000
local function in_parts(command, key, list, from, last)
  for k = from, last, MANY do try(command, key, unpack(list, k, min_of(k + MANY - 1, last))) end
end

---- The shard. Its clock never steps back. Each run of the server is an epoch.
-- Some Redis users, such as producers, may write neither clock nor epoch.
local now, now_text, offset, run_id, epoch, restarted, policy, settings, pressure
-- Without this check, the server would log a refused command with every batch.
local function may_set_meta() return not acl_check or acl_check('HSET', META, 'state', '') end
local function set_meta(field, value) return may_set_meta() and try('HSET', META, field, value) end
-- The text of all these variables except the time. It is parsed only after a change.
local STATE, NEW_STATE, state = '^(%d+) (%x*) (%d+) (%d+) (%d+) (%d+) (%d)$', '0  0 0 0 0 0'
-- The upper bits of an epoch's number are a count, the lower bits a time. The count alone is not enough, because a
-- server that has lost data repeats a count.
local EPOCH = 2 ^ 32
local function read_state(text)
  if text == state then return end
  state, offset, run_id, epoch, restarted, policy, settings, pressure = text, string.match(text, STATE)
  offset, epoch, restarted, policy, settings, pressure = offset + 0, epoch + 0, restarted + 0, policy + 0, settings + 0, pressure + 0
end
local function write_state()
  state = format('%d %s %d %d %d %d %d', offset, run_id, epoch, restarted, policy, settings, pressure)
  set_meta('state', state)
end
local function begin_epoch(restarted_ms)
  epoch, restarted = (floor(epoch / EPOCH) + 1) * EPOCH + now % EPOCH, restarted_ms
  write_state()
end
local function read_shard()
  local time, meta = call('TIME'), call('HMGET', META, 'last_ms', 'state')
  read_state(meta[2] or NEW_STATE)
  local last_ms, clock = tonumber(meta[1] or 0) or 0, time[1] * 1000 + floor(time[2] / 1000)
  local advanced = clock + offset
  now = max_of(advanced, last_ms)
  now_text = format('%d', now)
  if advanced < last_ms then
    offset = offset + last_ms - advanced
    write_state()
    set_meta('step_ms', format('%d', last_ms - advanced))
    try('HINCRBY', META, 'steps', '1')
  elseif now > last_ms then
    set_meta('last_ms', now_text)
  end
  if run_id ~= ARGV[1] or run_id == '' then
    -- The caller's run_id may be out of date, so ask the server.
    local id, last = string.match(call('INFO', 'server'), 'run_id:(%x+)'), run_id
    run_id = id
    if last ~= id then begin_epoch(last == '' and 0 or now) end
  end
  -- A server that has lost all data looks new. If the caller knows another epoch, data was lost, so begin a new epoch.
  local known = ARGV[3] + 0
  if restarted == 0 and known ~= 0 and known ~= epoch and may_set_meta() then begin_epoch(now) end
end

---- Counters. Redis stores each counter as four doubles: used, end, begin, flags. Flag 1: turns wait in its queue.
-- Flag 2: the counter is rolling. After the doubles, pairs follow, ordered by time: the time when an amount leaves the
-- counter, and the amount.
-- A restart may lose the last debits of a window. A window of at most this length (ms) then permits no debit until it
-- ends.
local LOST_WINDOW_MAX = 60000
-- Fields of a debit: number of the counter · kind of window (0: none) · 1 to refuse while turns wait in the counter's
-- queue · 1 if the limit is in shadow mode · amount · maximum · begin, end and length of the window · maximum number of
-- counters of the limit.
local DEBIT, DEBIT_SIZE = '<I4BBBdddddd', 55
local HELD, ROLLING, FIXED, DAY = 1, 2, 3, 4
-- Fields of an added amount: number of the counter · amount · end of the window in which the amount was debited, or -1.
local ADD, ADD_SIZE = '<I4dd', 20
local NO_BOUND = 2 ^ 53
-- The counters of the batch by number, and the number of the current transaction. `touch` of a counter is the number of
-- the last transaction that changed the counter.
local counters, present
-- By the key of a limit's counters. `shared` has the limit's counter `~`: new counters share it when the limit has its
-- maximum number of counters. `sizes` counts the other counters.
local shared, sizes
-- For each counter that the current transaction has changed: its seven old values. Later batches reuse the list.
local before, noted = {}, 0
local function load_counter(key, name, text)
  -- A ninth field would make Lua double the table, so only a rolling counter has `buckets`.
  local c = { key = key, name = name, exists = text and true, used = 0, ends = 0, began = 0, queued = false, touch = false }
  counters[#counters + 1] = c
  if name == '~' then shared[key] = c end
  if not text then return c end
  if #text < 32 or #text % 16 ~= 0 then c.is_lost = true return c end
  local flags
  c.used, c.ends, c.began, flags = unpack_struct('<dddd', text)
  c.queued = flags % 2 == 1
  if flags >= 2 then c.buckets = {} end
  for at = 33, c.buckets and #text or 0, 8 do c.buckets[#c.buckets + 1] = unpack_struct('<d', text, at) end
  return c
end
local function shared_counter(key) return shared[key] or load_counter(key, '~', call('HGET', key, '~')) end
local function size_of(key)
  sizes[key] = sizes[key] or call('HLEN', key) - call('HEXISTS', key, '~') return sizes[key]
end
local function set_exists(c, exists)
  if c.name ~= '~' and c.key ~= BUILT_IN then sizes[c.key] = size_of(c.key) + (exists and 1 or -1) end
  c.exists = exists
end
-- At a counter's first change in a transaction, saves its old values. Creates a missing counter.
local function change(c)
  if c.touch ~= present then
    local n = noted
    before[n + 1], before[n + 2], before[n + 3], before[n + 4] = c, c.used, c.ends, c.began
    before[n + 5], before[n + 6], before[n + 7] = c.queued, c.buckets or false, c.exists
    c.touch, noted = present, n + 7
    if c.buckets then c.buckets = { unpack(c.buckets) } end
  end
  if not c.exists then set_exists(c, true) end
end
local function undo_changes()
  for n = 1, noted, 7 do
    local c, existed = before[n], before[n + 6]
    if c.exists ~= existed then set_exists(c, existed) end
    c.used, c.ends, c.began, c.queued, c.buckets = unpack(before, n + 1, n + 5)
  end
end
-- Returns the limit's shared counter `~` if the counter itself does not exist.
local function written(number)
  local c = counters[number + 0]
  if c.exists or c.key == BUILT_IN then return c end
  local others = shared_counter(c.key)
  return others.exists and others or c
end
local function sum_buckets(c)
  c.used, c.ends, c.began = 0, c.buckets[1] or 0, 0
  for k = 2, #c.buckets, 2 do c.used = c.used + c.buckets[k] end
end
-- Returns when the amount leaves the counter.
local function debit_rolling(c, amount, length)
  local width = floor((max_of(length, 1) + 7) / 8)
  local leaves = (floor(now / width) + 1) * width + length
  if amount == 0 then return leaves end
  local list, k = c.buckets, 1
  while list[k] and list[k] < leaves do k = k + 2 end
  if list[k] ~= leaves then
    table.insert(list, k, 0)
    table.insert(list, k, leaves)
  end
  list[k + 1] = list[k + 1] + amount
  sum_buckets(c)
  return leaves
end
-- An unreadable counter counts as used up until its window ends, even if the transaction is refused.
local function use_up(c, window, from, upto, length)
  c.is_lost, c.touch = nil, 0
  if window == ROLLING then c.buckets = { now + length, NO_BOUND } return end
  if window > ROLLING then c.used, c.ends, c.began = NO_BOUND, upto, from end
end
local function open_window(c, window, from, upto, length)
  if window == ROLLING then
    c.buckets = c.buckets or {}
    while c.buckets[1] and c.buckets[1] <= now do c.buckets = { unpack(c.buckets, 3) } end
    return sum_buckets(c)
  end
  -- The limit has another kind of window, so its counters start from zero.
  if c.buckets or window < ROLLING and c.ends ~= 0 then c.used, c.ends, c.began, c.buckets = 0, 0, 0, false end
  if window < ROLLING or now < c.ends then return end
  if c.ends <= from then c.used, c.ends, c.began = 0, upto, from
  -- The time zone has changed, so the day continues until its new end.
  elseif window == DAY then c.ends = upto
  -- The length has changed, so one longer window begins now. It includes the whole next window.
  else c.used, c.ends, c.began = 0, upto + length, now end
end
-- The current transaction: version and a blank · key of the dedupe record · last enqueued entry · all enqueued entries
-- (nil for fewer than two) · true if records and entries get the stamp · stamp · counters in shadow mode that would
-- have refused a debit.
local version, dedupe, entry, entries, stamped, stamp, shadowed
function words.debit(i)
  local debits = ARGV[i]
  for at = 1, #debits, DEBIT_SIZE do
    local number, window, behind, shadow, amount, max, from, upto, length, most = unpack_struct(DEBIT, debits, at)
    -- If the window has ended since the decision, debit the current window.
    if window == FIXED and now >= upto then
      upto = upto + (floor((now - upto) / length) + 1) * length
      from = upto - length
    end
    if window > ROLLING and (now < from or now >= upto) then return i + 1, TIME end
    local c = counters[number]
    if not c.exists and most < NO_BOUND and c.key ~= BUILT_IN and size_of(c.key) >= most then c = shared_counter(c.key) end
    -- A debit without amount and window only checks the counter, and needs no permission to write it.
    local checks = amount == 0 and window == 0
    if not checks then
      if c.is_lost then use_up(c, window, from, upto, length) end
      change(c)
      open_window(c, window, from, upto, length)
    end
    local used, ends, began = c.used, c.ends, c.began
    if checks and (c.buckets or ends ~= 0) then used, ends, began = 0, 0, 0 end
    -- After a restart, debits of a fixed window may be lost, and permits in use may not be counted yet. So the counter
    -- then counts as used up.
    if window == FIXED and restarted > 0 and c.began <= restarted and length <= LOST_WINDOW_MAX then
      used = max_of(used, max)
    elseif window == HELD and restarted > 0 and now < restarted + lease then
      used, ends = max_of(used, max), restarted + lease
    end
    if amount > max - used or behind == 1 and c.queued then
      if shadow == 0 then
        return i + 1, { 'debit', number, pack('<dddd', used, ends, began, c.queued and 1 or 0) }
      end
      shadowed = shadowed or {}
      shadowed[#shadowed + 1] = number
    end
    local leaves = c.ends
    if window == ROLLING then leaves = debit_rolling(c, amount, length) else c.used = c.used + amount end
    if checks then leaves = ends else used, began = c.used, c.began end
    if stamped then stamp = (stamp == '-' and '' or stamp .. ',') .. format('%d:%d:%d', used, leaves, began) end
  end
  return i + 1
end
-- In a rolling counter, changes the amount that leaves at `ends_ms`, or the last amount if `ends_ms` is -1.
function words.add(i)
  local amounts = ARGV[i]
  for at = 1, #amounts, ADD_SIZE do
    local number, amount, ends_ms = unpack_struct(ADD, amounts, at)
    local c = written(number)
    if c.buckets then
      change(c)
      local list, k = c.buckets, #c.buckets - 1
      while k > 0 and ends_ms >= 0 and list[k] ~= ends_ms do k = k - 2 end
      if k > 0 then list[k + 1] = max_of(list[k + 1] + amount, 0) end
      sum_buckets(c)
    elseif ends_ms < 0 or c.exists and c.ends == ends_ms then
      change(c)
      c.used = max_of(c.used + amount, 0)
    end
  end
  return i + 1
end

---- Queues. For each stream, the entries that the batch has acknowledged are deleted together.
local acknowledged
-- Above this number of entries, one trim is faster than deletes by ID. For each delete, Redis walks over the neighbors
-- of the entry.
local FEW = 8
function words.held(i)
  local stream, id = ARGV[i], ARGV[i + 1]
  if call('XACK', stream, GROUP, id) == 0 then return i + 2, NOT_HELD end
  local list = acknowledged[stream]
  if list then list[#list + 1] = id else acknowledged[stream] = { id } end
  return i + 2
end
local function first_held(stream, from, upto, ...)
  local found = try('XPENDING', stream, GROUP, from, upto, '1', ...)
  return not found.err and found[1] or nil
end
local function delete_acknowledged(stream)
  local list, from = acknowledged[stream] or {}, 1
  acknowledged[stream] = nil
  if #list > FEW then
    -- Entries are taken in order, so all entries before the first held entry are acknowledged. Without held entries,
    -- all entries up to the last one of the list are acknowledged.
    local held = first_held(stream, '-', '+')
    local trimmed = try('XTRIM', stream, 'MINID', held and held[1] or list[#list])
    if trimmed == #list - (held and 0 or 1) then from = #list end
  end
  in_parts('XDEL', stream, list, from, #list)
end

---- Timers: the batch sets them with the ZADD option `rule`, or clears them. All are written together.
local due, dues, rule, cleared, clears = {}, 0, nil, {}, 0
local function write_timers()
  for k = 1, dues, MANY do try('ZADD', TIMERS, rule, unpack(due, k, min_of(k + MANY - 1, dues))) end
  if clears > 0 then in_parts('ZREM', TIMERS, cleared, 1, clears) end
  dues, clears = 0, 0
end

---- Inboxes of the batch, by number.
local boxes
local function load_inbox(tenant, name, seq)
  boxes[#boxes + 1] = { name = name, key = P .. 'replies:' .. tenant .. ':' .. name, known = P .. 'inboxes:' .. tenant,
    seqs = P .. 'seqs:' .. tenant, seq = seq or 0, used = false }
end
-- Writes at once, because later transactions of the batch count the inboxes.
local function use_inbox(box)
  if not box.used then call('ZADD', box.known, now_text, box.name) end
  box.used = true
end

---- Other guards and writes.
local function has_version(key, text) return call('GETRANGE', key, '0', format('%d', #text - 1)) == text end
local function record(key) return { 'record', key, call('GET', key) } end
function words.dedupe(i) return i, has_version(dedupe, version) and NOT_HELD or nil end
function words.version(i) return i + 2, not has_version(ARGV[i], ARGV[i + 1]) and record(ARGV[i]) or nil end
-- One command checks all keys, because usually none of them exists.
function words.absent(i)
  local last = i + ARGV[i]
  if call('EXISTS', unpack(ARGV, i + 1, last)) == 0 then return last + 1 end
  for k = i + 1, last do if call('EXISTS', ARGV[k]) == 1 then return last + 1, record(ARGV[k]) end end
end
function words.present(i) return i + 1, call('EXISTS', ARGV[i]) == 0 and { 'record', ARGV[i], false } or nil end
function words.before(i) return i + 1, now >= ARGV[i] + 0 and TIME or nil end
function words.since(i) return i + 1, now < ARGV[i] + 0 and TIME or nil end
function words.memory(i) return i, pressure == 1 and { 'pressure' } or nil end
function words.member(i) return i + 2, not call('ZSCORE', ARGV[i], ARGV[i + 1]) and { 'no_member' } or nil end
function words.first(i) return i + 2, call('ZRANGE', ARGV[i], '0', '0')[1] ~= ARGV[i + 1] and { 'no_member' } or nil end
function words.generation(i)
  return i + 2, (policy > ARGV[i] + 0 or settings > ARGV[i + 1] + 0) and { 'generation', policy, settings } or nil
end
function words.epoch(i)
  local lasts = restarted == 0 or ARGV[i + 1] == '0' or now >= restarted + ARGV[i + 1]
  return i + 2, (epoch ~= ARGV[i] + 0 or not lasts) and { 'epoch' } or nil
end
function words.within(i) return i + 2, call('XLEN', ARGV[i]) >= ARGV[i + 1] + 0 and { 'full' } or nil end
function words.fits(i)
  local full = call('ZCARD', ARGV[i]) >= ARGV[i + 2] + 0 and not call('ZSCORE', ARGV[i], ARGV[i + 1])
  return i + 3, full and { 'full' } or nil
end
function words.inbox(i)
  local box = boxes[ARGV[i] + 0]
  if call('XLEN', box.key) >= ARGV[i + 1] + 0 then return i + 3, { 'inbox_full' } end
  local fits = box.used or call('ZSCORE', box.known, box.name) or call('ZCARD', box.known) < ARGV[i + 2] + 0
  return i + 3, not fits and { 'inboxes' } or nil
end
function words.unread(i)
  local exists = call('XRANGE', ARGV[i], ARGV[i + 1], ARGV[i + 1])[1]
  return i + 2, (not exists or first_held(ARGV[i], ARGV[i + 1], ARGV[i + 1])) and { 'read' } or nil
end
-- Precedes guards that depend on the length or entries of a queue.
function words.delete_acknowledged(i) delete_acknowledged(ARGV[i]) return i + 1 end
-- If several entries must be held, all but the last are checked before any is acknowledged.
function words.pending(i) return i + 2, not first_held(ARGV[i], ARGV[i + 1], ARGV[i + 1]) and NOT_HELD or nil end
function words.idle(i)
  if first_held(ARGV[i], '-', '+', ARGV[i + 1]) then return i + 2, NOT_HELD end
  try('XGROUP', 'DELCONSUMER', ARGV[i], GROUP, ARGV[i + 1]) return i + 2
end
function words.use_inbox(i) use_inbox(boxes[ARGV[i] + 0]) return i + 1 end
function words.put(i) call('SET', ARGV[i], version .. (entry or '-') .. ' ' .. stamp .. ' ' .. ARGV[i + 1]) return i + 2 end
function words.call(i)
  local last = i + max_of(ARGV[i], 0)
  call(unpack(ARGV, i + 1, last)) return last + 1
end
-- Parts expire together with their record.
function words.part(i)
  call('HSET', ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  local ends_ms = call('PEXPIRETIME', ARGV[i])
  if ends_ms > 0 then call('PEXPIREAT', ARGV[i + 1], format('%d', ends_ms)) end
  return i + 4
end
function words.group(i) try('XGROUP', 'CREATE', ARGV[i], GROUP, '0', 'MKSTREAM') return i + 1 end
function words.enqueue(i)
  local last = i + 1 + max_of(ARGV[i + 1], 0)
  if entry then entries = entries or { entry } end
  -- The first field of a stamped entry is the stamp.
  if stamped then ARGV[i + 3] = stamp end
  entry = call('XADD', ARGV[i], '*', unpack(ARGV, i + 2, last))
  if entries then entries[#entries + 1] = entry end
  return last + 1
end
function words.reply(i)
  local box = boxes[ARGV[i] + 0]
  local number = format('%d', box.seq + 1)
  -- If the inbox's key has another type, only the reply is lost.
  if not try('XADD', box.key, '*', 'reply', ARGV[i + 1], 'seq', number).err then
    box.seq = number
    use_inbox(box)
  end
  return i + 2
end
-- Write earlier clears first. Otherwise they would remove a timer that is set after its clear.
function words.timer(i)
  if clears > 0 or rule ~= ARGV[i] then write_timers() end
  due[dues + 1], due[dues + 2], dues, rule = ARGV[i + 2], ARGV[i + 1], dues + 2, ARGV[i]
  return i + 3
end
function words.clear(i) cleared[clears + 1], clears = ARGV[i], clears + 1 return i + 1 end
-- Precedes other commands for sets, because the timers are a set, too.
function words.write_timers(i) write_timers() return i end
function words.queue(i)
  local waits, c = call('ZCARD', ARGV[i]) > 0, written(ARGV[i + 1])
  if c.exists or waits then change(c) c.queued = waits end
  return i + 2
end
function words.restart(i)
  local c = written(ARGV[i])
  if c.exists and not c.buckets and c.ends == ARGV[i + 2] + 0 then
    change(c) c.used, c.began = max_of(c.used - ARGV[i + 1], 0), now
  end
  return i + 3
end
function words.delete_counter(i)
  local c = counters[ARGV[i] + 0]
  change(c) set_exists(c, false)
  c.used, c.ends, c.began, c.queued, c.buckets = 0, 0, 0, false, false
  return i + 1
end
-- Also writes the memory flag to a separate field, because producers in other languages read this field.
function words.note(i)
  local name, value = ARGV[i], ARGV[i + 1] + 0
  if name == 'policy' then policy = value elseif name == 'settings' then settings = value else pressure = value end
  write_state()
  if name == 'pressure' then set_meta('pressure', ARGV[i + 1]) end
  return i + 2
end
local function commit(i, stop)
  local conflict
  version, dedupe, stamped = ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1'
  entry, entries, shadowed, stamp = nil, nil, nil, '-'
  i = i + 3
  while i <= stop do
    i, conflict = words[ARGV[i]](i + 1)
    if conflict then
      undo_changes()
      return dedupe ~= '' and has_version(dedupe, version) and 2 or conflict
    end
  end
  if entries or shadowed then return { 'committed', entries or { entry }, shadowed or {} } end
  return entry or 1
end

---- The batch. If a key has another type, only the transactions that need the key fail.
-- Negative lengths count as 0. Otherwise a caller could make the function run forever. Returns the index after the
-- groups.
local function load_groups(i, prefix, load)
  for _ = 1, ARGV[i] do
    local group, n = ARGV[i + 1], max_of(ARGV[i + 2], 0)
    local found = try('HMGET', prefix .. group, unpack(ARGV, i + 3, i + 2 + n))
    for k = 1, n do load(group, ARGV[i + 2 + k], not found.err and found[k]) end
    i = i + 2 + n
  end
  return i + 1
end
local function save()
  local hashes = {}
  local function set(key, name, value)
    local list = hashes[key] or {}
    local n = #list
    hashes[key], list[n + 1], list[n + 2] = list, name, value
  end
  for _, c in ipairs(counters) do
    if c.touch and c.exists then
      local text = pack('<dddd', c.used, c.ends, c.began, (c.queued and 1 or 0) + (c.buckets and 2 or 0))
      for b = 1, c.buckets and #c.buckets or 0 do text = text .. pack('<d', c.buckets[b]) end
      set(c.key, c.name, text)
    elseif c.touch then
      try('HDEL', c.key, c.name)
    end
  end
  for _, box in ipairs(boxes) do if box.used and box.seq ~= 0 then set(box.seqs, box.name, box.seq) end end
  for key, list in pairs(hashes) do in_parts('HSET', key, list, 1, #list) end
end
local function run(keys, args)
  call, try, acl_check = redis.call, redis.pcall, redis.acl_check_cmd
  pack, unpack_struct, format = struct.pack, struct.unpack, string.format
  unpack, max_of, min_of, floor = _G.unpack, math.max, math.min, math.floor
  ARGV, P = args, keys[1]
  META, TIMERS, BUILT_IN, lease = P .. 'meta', P .. 'timers', P .. 'counters:_', ARGV[2] + 0
  counters, present, shared, sizes, noted = {}, 0, {}, {}, 0
  acknowledged, boxes, dues, clears = {}, {}, 0, 0
  read_shard()
  local i, last = load_groups(load_groups(4, '', load_counter), P .. 'seqs:', load_inbox), #ARGV
  local results = { now, epoch, restarted, policy, settings, pressure }
  while i <= last do
    local stop = i + max_of(ARGV[i], 0)
    present, noted = present + 1, 0
    local done, result = pcall(commit, i + 1, stop)
    if not done then
      undo_changes()
      result = { 'failed', type(result) == 'table' and result.err or tostring(result) }
    end
    results[#results + 1], i = result, stop + 1
  end
  results[4], results[5], results[6] = policy, settings, pressure
  for stream in pairs(acknowledged) do delete_acknowledged(stream) end
  write_timers()
  save()
  return results
end

if not redis.register_function then return run(_G.KEYS, _G.ARGV) end
redis.register_function({ function_name = NAME, callback = run, flags = { 'allow-oom' } })
