-- Shared by every script: key names, the shard's clock, its epoch. KEYS[1] is the shard's prefix; every other
-- key is built from it, so all keys of a shard share one hash tag.
local P = KEYS[1]
local META, TIMERS = P .. 'meta', P .. 'timers'
-- Which inbound entry an id waits in that `submit` remembered, by tenant:turn.
local QUEUED = P .. 'queued'
local GROUP = 'workers'
local call = redis.call
local num = tonumber

local function turn_key(tt) return P .. 'turn:' .. tt end
local function done_key(tt) return P .. 'done:' .. tt end
local function steps_key(tt) return P .. 'steps:' .. tt end
local function tasks_key(tenant) return P .. 'tasks:' .. tenant end
local function children_key(tt) return P .. 'children:' .. tt end
local function under_key(tt) return P .. 'under:' .. tt end
local function usage_key(tenant, day) return P .. 'usage:' .. tenant .. ':' .. day end
local function effect_key(effect) return P .. 'effect:' .. effect end
-- What a person is asked about a call: `<tenant>:<approval>`.
local function approval_key(name) return P .. 'approval:' .. name end
local function cached_key(tenant) return P .. 'cached:' .. tenant end
local function cached_order_key(tenant) return P .. 'cached_order:' .. tenant end
local function row_key(row) return P .. 'row:' .. row end
local function id_key(tt) return P .. 'id:' .. tt end
-- By what a task's id is told from a turn's in `queued` and in its entry. No turn has such a name.
local function task_id_of(tt) return 'k:' .. tt end
local function lane_key(tenant, agent) return P .. 'lane:' .. tenant .. ':' .. agent end
local function tenant_key(tenant) return P .. 'tenant:' .. tenant end
-- Cancels of what has not come yet: of a tenant, its marks by their end; of a turn or task, the reason.
local function early_key(name) return P .. 'early:' .. name end

local function split(tt)
  return string.match(tt, '^([^:]+):(.+)$')
end

-- The most that shard time may be ahead of the server's clock, ms: 200 years. A clock that ran decades ahead and was put
-- right leaves less: a record beyond it is damaged, or somebody wrote it, and it is not believed.
local AHEAD_MAX_MS = 6311520000000

-- Rule 2: Redis TIME plus an offset that grows when TIME steps back, so windows neither repeat nor stop.
-- `injected` replaces TIME in tests and is empty otherwise. Returns shard time, TIME itself (what numbers the entries
-- of streams, so what they are trimmed by: rule 20), whether memory is short, as texts what else was asked for (fields of
-- `meta`, which cost less with the clock's own than in a question of their own), and the offset and time that are recorded.
local function shard_time(injected, ...)
  local seconds, micros = unpack(call('TIME'))
  local redis_ms = seconds * 1000 + math.floor(micros / 1000)
  local raw = injected == '' and redis_ms or num(injected)
  local found = call('HMGET', META, 'offset_ms', 'last_ms', 'pressure', ...)
  local offset, last = num(found[1] or 0) or 0, num(found[2] or 0) or 0
  -- Negated, so that what is no number fails, too.
  if not (offset <= AHEAD_MAX_MS and last - raw <= AHEAD_MAX_MS) then return raw, redis_ms, found[3] == '1', found end
  return math.max(raw + offset, last), redis_ms, found[3] == '1', found, raw + offset, last
end

-- The same, recorded: for verbs that schedulers and workers alone call. Others read the time with `shard_time`, and their
-- users of Redis need no right to move it (roles.rs).
local function clock(injected, ...)
  local now, redis_ms, tight, found, advanced, last = shard_time(injected, ...)
  if not last then
    call('HSET', META, 'offset_ms', 0, 'step_ms', AHEAD_MAX_MS, 'last_ms', string.format('%d', now))
    call('HINCRBY', META, 'steps', 1)
  elseif advanced < last then
    call('HSET', META, 'offset_ms', num(found[1] or 0) + last - advanced, 'step_ms', last - advanced)
    call('HINCRBY', META, 'steps', 1)
  -- Redis writes a number that it is given with every digit it could have, which takes five times as long.
  elseif now > last then
    call('HSET', META, 'last_ms', string.format('%d', now))
  end
  return now, redis_ms, tight, found
end

-- Until when marks of lost begins may be there, and when this epoch began (0: the first). `epoch` reads both; mostly
-- there never was either.
local marks_ms, restarted_ms = 0, 0

-- Rule 8: a Redis that restarted may have lost its last writes. Answers when this epoch began (0: the first), and what
-- Redis calls itself in it. `told` is what it called itself when the caller's connection was made, which no restart
-- outlives: it spares asking where it is what is known. Else Redis is asked, so that whoever is told wrong (something
-- in between keeps connections) cannot undo what others have noticed. `found` is what `clock` answered, where that was
-- asked for these three fields first.
local function epoch(now, told, found)
  local known, epoch_ms, ran_ms = unpack(found or call('HMGET', META, 'run_id', 'epoch_ms', 'ran_ms'), found and 4 or 1, found and 6 or 3)
  marks_ms = num(ran_ms or 0)
  restarted_ms = num(epoch_ms or 0)
  if told and told == known then return restarted_ms, told end
  -- Forty hexadecimal digits. A pattern would be tried at every byte of the text before them.
  local info = call('INFO', 'server')
  local _, at = string.find(info, 'run_id:', 1, true)
  local id = at and string.sub(info, at + 1, at + 40) or ''
  if known == id then return restarted_ms, id end
  restarted_ms = known and now or 0
  call('HSET', META, 'run_id', id, 'epoch_ms', restarted_ms)
  call('HINCRBY', META, 'epoch', 1)
  return restarted_ms, id
end

-- Marks: what workers said to have begun where Redis had lost it (see assert). One hash a turn, with
-- the fields of MARK in the schema.
local function marks_key(tt) return P .. 'ran:' .. tt end

-- The mark of a call; nil where there is none.
local function mark_of(tt, position, digest)
  local of, nonce, result, message, audit = unpack(call('HMGET', marks_key(tt), MARK.digest, MARK.nonce .. position,
    MARK.result .. position, MARK.message .. position, MARK.audit .. position))
  if of ~= digest or not nonce then return nil end
  return { nonce = nonce, result = result, message = message, audit = audit }
end

-- Notes that `id` is under way because `above` (tenant:id) began it: a turn under a task, a task delegated from it, what a call
-- waits for. What is there under its name may be anything (rule 18).
local function put_under(above, id, now)
  redis.pcall('ZADD', under_key(above), now, id)
  redis.pcall('PEXPIRE', under_key(above), 2678400000)
end

-- Whether a turn or task was cancelled, or is being ended: nothing begins under it any more. Nil where there is no record.
local function is_over(tt)
  local calls, cancelled, fence = unpack(call('HMGET', turn_key(tt), TURN.calls, TURN.cancelled, TURN.fence))
  if not calls then return nil end
  return cancelled ~= false or fence ~= false and string.sub(fence, 1, 2) == 's:'
end

-- Has `cascade` end everything below a turn or task. Mark and timer stay until nothing is left.
local function end_below(tt, why, now)
  if call('EXISTS', under_key(tt)) == 0 then return end
  redis.pcall('HSET', P .. 'cascades', tt, why)
  redis.pcall('PEXPIRE', P .. 'cascades', 2678400000)
  call('ZADD', TIMERS, now, 'c:' .. tt)
end

-- Arms timers, given as score, member, score, member…, in few commands. Redis keeps up to 128 members as a list and looks
-- through it, twice, for each that comes, until there is one of more than 64 bytes: for many, such a one comes and goes.
local function arm(timers)
  local long = #timers >= 64 and string.rep('-', 65)
  if long then call('ZADD', TIMERS, 'inf', long) end
  for from = 1, #timers, 1000 do call('ZADD', TIMERS, unpack(timers, from, math.min(from + 999, #timers))) end
  if long then call('ZREM', TIMERS, long) end
end

-- What an error says.
local function why_of(problem) return type(problem) == 'table' and problem.err or tostring(problem) end

-- Rule 18: does one item's share of a batch. What fails costs that item alone; answers false and why.
local function alone(share, ...)
  local done, answer, more = pcall(share, ...)
  if done then return true, answer, more end
  return false, why_of(answer)
end

-- The word of an item that failed: the caller repeats the batch item by item, and gives up that one.
local function failed(problem) return 'FAILED ' .. why_of(problem) end

local function word_of(share, ...)
  local done, word = pcall(share, ...)
  return done and word or failed(word)
end

-- A count that a hand may have changed: nil where it is no whole number.
local function whole(text)
  return text and #text <= 9 and string.match(text, '^%d+$') and num(text) or nil
end

-- When a window that opens now ends, where the one before ended at `last` (0: there was none). If that was no boundary of
-- windows of this length, the length has changed: then the first one is a whole one, and more, and the counter does not open once
-- more for what is left up to the next boundary.
local function window_end(now, stagger, length, last)
  local ends = now - (now - stagger) % length + length
  if last <= 0 or (last - stagger) % length == 0 or now - last >= length or ends - now == length then return ends end
  return ends + length
end

-- What is used in the day from `start` to `ends`, where the one before ended at `last`: if that was within this day, the time zone
-- has changed, and the old day goes on to the end of this one.
local function used_in_day(used, last, start, ends) return last > start and last < ends and used or 0 end

-- A number that a hand may have changed: nil where it is none of those that we write, which are finite and not negative.
local function sound(text)
  local n = num(text or '')
  return n and n >= 0 and n < 1e15 and n or nil
end

-- Whether `entry` has been delivered to some consumer and not been acknowledged; answers the consumer or nil.
-- Rule 21: where the stream or its group is gone, nobody holds anything.
local function pending(stream, entry)
  local found = redis.pcall('XPENDING', stream, GROUP, entry, entry, 1)
  return not found.err and found[1] and found[1][2] or nil
end

-- Rule 23: slices whose holder has died wait on a queue of their own, named after the turn's, which workers read
-- into a lane of its own.
local function suspect_queue(queue)
  if string.sub(queue, 1, 6) ~= 'ready:' or string.sub(queue, 7, 14) == 'suspect:' then return queue end
  return 'ready:suspect:' .. string.sub(queue, 7)
end

-- The queue that the slice of a record is on: `queue` and `crashes` are the record's. A reap of an older build wrote
-- suspects back to the turn's own queue. One that is held counts as there, also where a hand has deleted its entry.
local function queue_of(queue, crashes, fence)
  local other = crashes and suspect_queue(queue)
  if other and (redis.pcall('XRANGE', P .. other, fence, fence)[1] or pending(P .. other, fence)) then return other end
  return queue
end

-- What Redis knows of our group on a stream; nil where one of them is gone. Others may have groups of their own there.
local function group_of(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for g = 1, groups.err and 0 or #groups do
    local found = {}
    for i = 1, #groups[g], 2 do found[groups[g][i]] = groups[g][i + 1] end
    if found.name == GROUP then return found end
  end
end

-- Whether entry id `a` comes after `b`; their halves have up to 20 digits, more than a number holds.
local function after(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return #a_ms > #b_ms or #a_ms == #b_ms and a_ms > b_ms end
  return #a_seq > #b_seq or #a_seq == #b_seq and a_seq > b_seq
end

-- Trims up to the oldest entry that is held, and where none is, up to what was delivered last: never past that, for
-- with nothing held, trimming to the newest id would destroy what nobody has read. Answers how many went.
local function trim_read(stream, group)
  local oldest = group.pending > 0 and call('XPENDING', stream, GROUP)[2]
  if oldest then return call('XTRIM', stream, 'MINID', oldest) end
  local last = group['last-delivered-id']
  local ms, seq = string.match(last, '^(%d+)-(%d+)$')
  -- The id after one with so many digits cannot be reckoned here.
  if #seq > 15 then return call('XTRIM', stream, 'MINID', last) + call('XDEL', stream, last) end
  return call('XTRIM', stream, 'MINID', ms .. '-' .. string.format('%.0f', num(seq) + 1))
end

-- Deletes a few entries by name where the stream holds no others: then there is nothing to trim, and Redis need not be
-- asked how far its readers are, which costs five times as much. Answers whether it did.
local function delete_few(stream, entries)
  if #entries > 8 or call('XLEN', stream) > #entries then return false end
  call('XDEL', stream, unpack(entries))
  return true
end

-- Rule 5: trims a stream up to what is neither pending nor undelivered. `acked` are entries just acknowledged: where
-- one old pending entry holds back many, they are deleted one by one instead.
local function trim(stream, acked)
  if acked and #acked > 0 and delete_few(stream, acked) then return end
  local group = group_of(stream)
  if not group then return end
  if trim_read(stream, group) == 0 and acked and #acked > 0 and call('XLEN', stream) > 1000 then
    call('XDEL', stream, unpack(acked))
  end
end

-- Whether an inbound entry has not been ended: whoever ends one removes it in the same script (`end_inbound`), so
-- that what is there is still to be decided about, also where a hand took it from whoever held it.
local function is_open(stream, entry)
  return pending(stream, entry) or call('XRANGE', stream, entry, entry)[1] ~= nil
end

-- Whether what the id of a turn stands for is somewhere (`known` is what its key says): not, where the turn was never decided
-- about and its entry is gone, with the stream. One that the build before this wrote names no entry.
local function is_waiting(tt, known)
  local entry = string.sub(known, 1, 1) == 'q' and call('HGET', QUEUED, tt)
  return not entry or is_open(P .. 'turns', entry)
end

-- An entry whose reader lost it comes anew behind later ones: until when that may be so is kept, so that whoever asks for
-- turns that were submitted before does not overlook them (see enter).
local function came_anew(entry) call('HSET', META, 'anew_ms', string.match(entry, '^%d+')) end

-- Acknowledges inbound entries and removes them. A trim takes them all at once where nothing older is held; but where
-- there is more than is held, undelivered or ended here, somebody's entries were taken from him, and wait for reap.
local function end_many(stream, entries) -- rarely
  local ended = 0
  for from = 1, #entries, 1000 do
    ended = ended + redis.call('XACK', stream, GROUP, unpack(entries, from, math.min(from + 999, #entries)))
  end
  if delete_few(stream, entries) then return end
  -- Redis 7.0 counts too many undelivered ones after a restart (`lag`): a few are looked at, of many is no trim.
  local group = group_of(stream)
  local beyond = group and call('XLEN', stream) - group.pending - ended
  local from = group and '(' .. group['last-delivered-id']
  if group and (beyond <= 0 or beyond <= 64 and #call('XRANGE', stream, from, '+', 'COUNT', beyond) == beyond) then
    -- What was never delivered, or taken from its reader, lies beyond the trim.
    if trim_read(stream, group) >= #entries then return end
  end
  for from = 1, #entries, 1000 do
    call('XDEL', stream, unpack(entries, from, math.min(from + 999, #entries)))
  end
end

-- Acknowledges an entry and deletes it by name: what is alone need not ask how far others are, nor whether the group knows it.
local function end_one(stream, entry)
  call('XACK', stream, GROUP, entry)
  call('XDEL', stream, entry)
end

local function end_inbound(stream, entries)
  if #entries == 1 then end_one(stream, entries[1]) elseif #entries > 1 then end_many(stream, entries) end
end

-- Rule 9: an entry that ends unadmitted and unread says itself which id `submit` remembered for it (INBOUND.given), and may
-- lie. So the id is not taken away: it goes in a while, unless its own turn is admitted meanwhile.
local function close_id(entry, fields, dedupe)
  for i = 1, #fields, 2 do
    local name = fields[i] == INBOUND.given and fields[i + 1]
    if name then
      if redis.pcall('GETRANGE', id_key(name), 0, 0) == 'q' then call('PEXPIRE', id_key(name), dedupe, 'NX') end
      if redis.pcall('HGET', QUEUED, name) == entry then call('HDEL', QUEUED, name) end
    end
  end
end

-- Acknowledges entries of one stream in chunks that fit Lua's stack, then trims it. What a group does not know to be
-- held, for a hand has made it anew, it would give out once more: that is removed by name.
local function ack_and_trim(stream, entries)
  for from = 1, #entries, 1000 do
    local upto = math.min(from + 999, #entries)
    if call('XACK', stream, GROUP, unpack(entries, from, upto)) <= upto - from then
      call('XDEL', stream, unpack(entries, from, upto))
    end
  end
  trim(stream, #entries <= 1000 and entries or nil)
end

-- Leases of those of whom one at a time does something for a shard. They end by shard time: keys that Redis ends stay for as
-- long as its clock steps back. That Redis ends them, too, only removes what nobody takes any more.

-- Whether somebody else has the lease. A build before this one wrote no time: its lease ends when Redis ends it. Keys may
-- hold anything (rule 18).
local function is_taken(lease, who, now)
  local found = redis.pcall('GET', lease)
  local holder, until_ms = string.match(type(found) == 'string' and found or '', '^(%S+) ?(%d*)$')
  return holder and holder ~= who and (until_ms == '' or num(until_ms) > now)
end

local function take(lease, who, now, lease_ms)
  call('SET', lease, string.format('%s %.0f', who, now + num(lease_ms)), 'PX', lease_ms)
end

-- Approvals: records, the sets of those that wait for people, and a stream of what happens to them.

-- For how long an approval is kept that has ended, ms, and its stream.
local function approval_kept() return 604800000 end

-- Whoever looks on hears of it; nobody has to. Further fields come in pairs.
local function tell_approval(tenant, id, event, about, now, ...)
  local key = P .. 'approvals:' .. tenant
  local written = redis.pcall('XADD', key, 'MAXLEN', '~', '1000', '*', 'event', event, 'approval', id, 'call', about,
    'at_ms', string.format('%d', now), ...)
  if type(written) == 'string' then call('PEXPIRE', key, approval_kept()) end
end

-- Nobody has to decide any more. Keys may hold anything (rule 18).
local function waits_no_more(tenant, id)
  redis.pcall('ZREM', P .. 'asked:' .. tenant, id)
  redis.pcall('ZREM', P .. 'asked', tenant .. ':' .. id)
end

-- Returns the bound that keeps people from being asked about a call of this agent, or nil: of the tenant's approvals that wait,
-- or of the agent's. Fewer than an agent may have are not counted by agent.
local function approvals_full(tenant, agent, now, most_of_tenant, most_of_agent)
  local waiting, from = P .. 'asked:' .. tenant, '(' .. string.format('%d', now)
  local count = call('ZCOUNT', waiting, from, '+inf')
  if count >= num(most_of_tenant) then return 'tenant' end
  if count < num(most_of_agent) then return nil end
  local of_agent = 0
  for _, id in ipairs(call('ZRANGEBYSCORE', waiting, from, '+inf')) do
    if redis.pcall('HGET', approval_key(tenant .. ':' .. id), APPROVAL.agent) == agent then of_agent = of_agent + 1 end
  end
  if of_agent >= num(most_of_agent) then return 'agent' end
end

-- Ends one that nobody has decided, or that counts no more.
local function end_approval(tenant, id, state, now)
  local key = approval_key(tenant .. ':' .. id)
  waits_no_more(tenant, id)
  local found = redis.pcall('HMGET', key, APPROVAL.state, APPROVAL.call)
  if found.err or found[1] ~= 'waiting' and found[1] ~= 'approved' then return end
  call('HSET', key, APPROVAL.state, state, APPROVAL.ended_ms, string.format('%d', now))
  call('HDEL', key, APPROVAL.exact)
  call('PEXPIRE', key, approval_kept())
  tell_approval(tenant, id, state, found[2] or '', now)
end
