#!lua flags=allow-oom
-- repair: looks whether things of one kind agree with each other, and mends what does not. Everything that others change
-- is asked for and changed in this one step, so that nothing seems wrong only because a fleet works beside it.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 '1' to mend, '' to look · 3 audit entry, JSON whose last object and itself are still open ·
--       4 dedupe_for ms · 5 lease ms · 6 longest lease that a fleet may have ms · 7 most turns that are counted · 8 kind
--       (a name in kinds below) · 9… what to look at: tenant:turn · name of a lane, stream, limit, consumer, tenant, key or
--       tenant:agent · <limit> <counter> · <counter> <place> · <queue> <entry> · tenant:tool:hash of an effect · tenant:approval
-- reply per thing: '' (it agrees) · MENDED <fault> <more> · FOUND <fault> <more> (nobody mended it: it was only looked
--       for, or cannot be mended safely); of tenants NOT_COUNTED where more is under way than may be counted in a step
-- effect ZADD, ZREM timers, held, asked and delayed; HSET, HDEL tenant, beats, nodes, suspects and queued; SADD limits and
--       externals; DEL and PEXPIRE ids; PEXPIRE effects; XGROUP CREATE; XACK and XDEL of entries that are nobody's; XADD audit
local now = shard_time(ARGV[1])
local mends, dedupe, lease, lease_max = ARGV[2] == '1', num(ARGV[4]), num(ARGV[5]), num(ARGV[6])
local NAMED_MAX = 50
local mended = {}

-- A fault that can be mended: mends it where that is asked for.
local function fault(word, item, mend)
  if not mends then return 'FOUND ' .. word end
  mend()
  -- Names are as others wrote them: what would need an escape in JSON is left out.
  local plain = #item <= 200 and string.match(item, '^[%w_.:@~/ %-]+$') or '?'
  mended[#mended + 1] = '"' .. word .. ' ' .. plain .. '"'
  return 'MENDED ' .. word
end

-- Whether there is something, whatever it is. Where a loop is to look at it, it is asked as what the loop takes it for: what is
-- of another type would break each round (rule 18).
local function exists(key) return call('EXISTS', key) == 1 end
local function ends_never(key) return call('PTTL', key) == -1 end

-- Whether somebody who shows signs of life holds an entry, and will end it himself.
local function is_held_by_the_living(stream, entry)
  local owner = pending(stream, entry)
  local beat = owner and num(call('HGET', P .. 'beats', owner) or 0)
  return beat and beat > now
end

-- Whether whoever had an entry has ended it: it is there only because an older one is still held (rule 5).
local function is_only_untrimmed(stream, entry)
  local group = not pending(stream, entry) and group_of(stream)
  return group and not after(entry, group['last-delivered-id'])
end

local kinds = {}

-- What `promote` cannot read it puts aside, each time that it has a timer: a timer that is given back mends nothing.
function kinds.turn(tt)
  local key = turn_key(tt)
  local calls, admitted, done, deadline, queue, agent, end_upto, touched, lease = unpack(call('HMGET', key, TURN.calls,
    TURN.admitted, TURN.done, TURN.deadline_ms, TURN.queue, TURN.agent, TURN.end_upto, TURN.touched_ms, TURN.external_lease_ms))
  if not calls then return '' end
  if not (split(tt) and num(calls) and num(admitted or '') and num(done or 0) and num(deadline or '') and queue and agent
    and num(end_upto or 0) and num(touched or 0) and num(lease or 0)) then
    return 'FOUND turn_unreadable'
  end
  if call('ZSCORE', TIMERS, 't:' .. tt) then return '' end
  return fault('turn_without_timer', tt, function() call('ZADD', TIMERS, now, 't:' .. tt) end)
end

-- The places that a turn's record says to hold are not counted: its limit would let more run than there may.
function kinds.holder(tt)
  local holds, lost = call('HGET', turn_key(tt), TURN.holds) or '', {}
  for counter, places in string.gmatch(holds, '(%S+) (%d+)') do
    for i = 1, math.min(num(places), 1000) do
      if not call('ZSCORE', P .. 'held:' .. counter, tt .. '/' .. i) then lost[#lost + 1] = { counter, tt .. '/' .. i } end
    end
  end
  if #lost == 0 then return '' end
  return fault('place_not_counted', tt, function()
    for i = 1, #lost do call('ZADD', P .. 'held:' .. lost[i][1], now, lost[i][2]) end
  end)
end

-- A place that nobody holds.
function kinds.place(item)
  local counter, member = string.match(item, '^(%S+) (.+)$')
  local tt, number = string.match(member, '^(.*)/(%d+)$')
  if not call('ZSCORE', P .. 'held:' .. counter, member) then return '' end
  for held, places in string.gmatch(tt and call('HGET', turn_key(tt), TURN.holds) or '', '(%S+) (%d+)') do
    if held == counter and num(number) <= num(places) then return '' end
  end
  return fault('place_leaked', item, function()
    call('ZREM', P .. 'held:' .. counter, member)
    call('ZADD', TIMERS, 'XX', 'LT', now, 'l:' .. counter)
  end)
end

function kinds.timer(tt)
  if exists(turn_key(tt)) or not call('ZSCORE', TIMERS, 't:' .. tt) then return '' end
  return fault('timer_without_turn', tt, function() call('ZREM', TIMERS, 't:' .. tt) end)
end

function kinds.lane(lane)
  if call('ZCARD', P .. 'lane:' .. lane) == 0 or call('ZSCORE', TIMERS, 'l:' .. lane) then return '' end
  return fault('lane_without_timer', lane, function() call('ZADD', TIMERS, now, 'l:' .. lane) end)
end

function kinds.delayed(tt)
  if not call('ZSCORE', P .. 'delayed', tt) then return '' end
  local calls, fence, admitted, done, paid = unpack(call('HMGET', turn_key(tt), TURN.calls, TURN.fence, TURN.admitted, TURN.done,
    TURN.paid))
  local upto = math.max(num(admitted or 0) or 0, paid_of(paid) or 0)
  if calls and not fence and (num(done or 0) or 0) < upto then return '' end
  return fault('parked_not', tt, function() call('ZREM', P .. 'delayed', tt) end)
end

-- The budgets of an agent, and a counter of a limit: what cannot be read counts as used up until its window ends.
function kinds.budget(name)
  local text = call('HGET', P .. 'budgets', name)
  if not text then return '' end
  local numbers = #text == 40 and { struct.unpack('<ddddd', text) } or {}
  for i = 1, 5 do
    if not sound(numbers[i]) then return 'FOUND unreadable' end
  end
  return ''
end

function kinds.counter(item)
  local limit, name = string.match(item, '^(%S+) (.+)$')
  local text = call('HGET', P .. 'counters:' .. limit, name)
  if not text then return '' end
  local numbers = #text == 24 and { struct.unpack('<ddd', text) } or {}
  for i = 1, 3 do
    if not sound(numbers[i]) then return 'FOUND unreadable' end
  end
  return ''
end

-- Whether a key is of the type that those take it for who use it: by the first word of its name, or by its whole name.
local SHARED = {
  meta = 'HLEN', policies = 'HLEN', queued = 'HLEN', budgets = 'HLEN', tenants = 'HLEN', pauses = 'HLEN', drains = 'HLEN',
  cascades = 'HLEN', seal_heads = 'HLEN', seal_keys = 'HLEN', sealing = 'HLEN', followed = 'HLEN', rolled = 'HLEN', beats = 'HLEN',
  nodes = 'HLEN', suspects = 'HLEN', timers = 'ZCARD', delayed = 'ZCARD', handled = 'ZCARD', absent = 'ZCARD', asked = 'ZCARD',
  grouped = 'SCARD', externals = 'SCARD', limits = 'SCARD', turns = 'XLEN', tasks = 'XLEN', audit = 'XLEN', seals = 'XLEN',
  anchors = 'XLEN', dead = 'XLEN', tools = 'GETRANGE', sealer = 'GETRANGE',
}
local TYPES = {
  tenant = 'HLEN', held = 'ZCARD', under = 'ZCARD', cached_order = 'ZCARD', kb = 'HLEN', kbd = 'HLEN', kbs = 'HLEN', stats = 'HLEN', ready = 'XLEN',
  lifted = 'GETRANGE', follower = 'GETRANGE', grant = 'GETRANGE', facts = 'HLEN', entered = 'HLEN', session = 'HLEN', usage = 'HLEN', row = 'HLEN', cached = 'HLEN', ran = 'HLEN', memories = 'HLEN',
  tasks = 'ZCARD', children = 'ZCARD', inboxes = 'ZCARD', messages = 'ZCARD', asked = 'ZCARD', short = 'ZCARD',
  remembered = 'ZCARD', replies = 'XLEN', approvals = 'XLEN', steps = 'LRANGE', heard = 'LRANGE', done = 'GETRANGE',
  seq = 'GETRANGE', read = 'GETRANGE',
}
function kinds.key(name)
  local command = SHARED[name] or TYPES[string.match(name, '^([^:]+):') or '']
  -- One word has two types.
  if string.find(name, '^tools:') then command = name == 'tools:names' and 'HLEN' or 'GETRANGE' end
  if string.find(name, '^early:') then command = string.find(name, '^early:[^:]+:') and 'GETRANGE' or 'ZCARD' end
  if not command then return '' end
  local key = P .. name
  if command == 'LRANGE' then call('LRANGE', key, 0, 0)
  elseif command == 'GETRANGE' then call('GETRANGE', key, 0, 0)
  elseif command == 'HLEN' then call('HLEN', key)
  elseif command == 'ZCARD' then call('ZCARD', key)
  elseif command == 'SCARD' then call('SCARD', key)
  else call('XLEN', key) end
  return ''
end

function kinds.limit(limit)
  if call('HLEN', P .. 'counters:' .. limit) == 0 or call('SISMEMBER', P .. 'limits', limit) == 1 then return '' end
  return fault('limit_unlisted', limit, function() call('SADD', P .. 'limits', limit) end)
end

-- What an id waits in that was given to a message is gone, and so is the message: the id is free, as `submit` finds. Without
-- the note that says where it waits, it would pass for one that waits.
function kinds.queued(tt)
  local entry = call('HGET', QUEUED, tt)
  if not entry or is_open(P .. 'turns', entry) or is_open(P .. 'tasks', entry) then return '' end
  return fault('id_without_entry', tt, function()
    if call('GETRANGE', id_key(tt), 0, 0) == 'q' then call('DEL', id_key(tt)) end
    call('HDEL', QUEUED, tt)
  end)
end

-- A remembered id that nothing will end: of a turn that was accepted and is gone, or that has ended.
function kinds.id(tt)
  local state = call('GETRANGE', id_key(tt), 0, 0)
  if state ~= 'a' and state ~= 'e' or not ends_never(id_key(tt)) then return '' end
  if state == 'a' and call('EXISTS', turn_key(tt), done_key(tt)) > 0 then return '' end
  return fault(state == 'a' and 'turn_lost' or 'id_endless', tt, function() call('PEXPIRE', id_key(tt), dedupe) end)
end

-- A lease that ends later than any lease does: reap would wait for that. Whoever lives renews it.
function kinds.beat(consumer)
  local ends = call('HGET', P .. 'beats', consumer)
  if not ends or num(ends) and num(ends) <= now + lease_max then return '' end
  return fault('lease_endless', consumer, function() call('HSET', P .. 'beats', consumer, now + lease) end)
end

function kinds.node(consumer)
  if call('HEXISTS', P .. 'nodes', consumer) == 0 or call('HEXISTS', P .. 'beats', consumer) == 1 then return '' end
  return fault('node_without_lease', consumer, function()
    call('HDEL', P .. 'nodes', consumer)
    call('HDEL', P .. 'suspects', consumer, 'turns ' .. consumer, 'tasks ' .. consumer)
  end)
end

function kinds.external(stream)
  if call('XLEN', P .. stream) == 0 and not exists(P .. stream) then return '' end
  -- Whom a group that is made anew would give an entry that a runtime holds, nobody knows: its task's timer offers it.
  if not group_of(P .. stream) then return 'FOUND runtime_without_group' end
  if call('SISMEMBER', P .. 'externals', stream) == 1 then return '' end
  return fault('runtime_unlisted', stream, function() call('SADD', P .. 'externals', stream) end)
end

-- An entry of a queue whose turn is not out under it: whoever carried it out could not end it. One that a living worker
-- holds he ends himself; a runtime that holds one hears that it is stale. One that a hand has deleted tells nobody whose it was:
-- a runtime that holds it may be at work on its task, and would lose that to another.
function kinds.entry(item)
  local queue, entry = string.match(item, '^(%S+) (%S+)$')
  local _, tt, size = body_of_entry(queue, entry)
  if tt and call('HGET', turn_key(tt), TURN.fence) == entry then return '' end
  if not tt and not pending(P .. queue, entry) or size == 0 and string.sub(queue, 1, 9) == 'external:' then return '' end
  if is_held_by_the_living(P .. queue, entry) or is_only_untrimmed(P .. queue, entry) then return '' end
  return fault('entry_stranded', item, function()
    redis.pcall('XACK', P .. queue, GROUP, entry)
    call('XDEL', P .. queue, entry)
  end)
end

function kinds.group(stream)
  if group_of(P .. stream) then return '' end
  return fault('stream_without_group', stream, function() ensure_group(stream) end)
end

-- A claim that no end was written for, of a call whose end is on record no more, if it ever was: one that ends while it is parked
-- leaves its claim. Whether it did anything nobody knows here: whoever makes an equal call is told so, and it ends by itself.
-- Nothing is mended of it but an end that it lacks.
function kinds.effect(effect)
  local by, until_ms, ended = unpack(call('HMGET', effect_key(effect), EFFECT.by, EFFECT.until_ms, EFFECT.ended))
  if ends_never(effect_key(effect)) then
    local lives = math.max((num(until_ms or '') or now + dedupe) - now, 1)
    return fault('claim_endless', effect, function() call('PEXPIRE', effect_key(effect), string.format('%.0f', lives)) end)
  end
  local turn, tenant = string.match(by or '', '^(.+)/%d+/%x*$'), string.match(effect, '^([^:]+):')
  if not turn or ended or (num(until_ms or '') or 0) <= now then return '' end
  if call('EXISTS', turn_key(tenant .. ':' .. turn), done_key(tenant .. ':' .. turn)) > 0 then return '' end
  return 'FOUND claim_without_turn'
end

-- People are still asked, and nobody would find it in a list. A set lives as long as the last of its members.
function kinds.approval(name)
  local state, asked, until_ms = unpack(call('HMGET', approval_key(name), APPROVAL.state, APPROVAL.asked_ms, APPROVAL.until_ms))
  local tenant, id = split(name)
  if state ~= 'waiting' or not tenant or not num(asked or '') or (num(until_ms or '') or 0) <= now then return '' end
  local missing = {}
  for set, place in pairs({ [P .. 'asked:' .. tenant] = { id, until_ms }, [P .. 'asked'] = { name, asked } }) do
    if not call('ZSCORE', set, place[1]) then missing[#missing + 1] = { set, place[1], place[2] } end
  end
  if #missing == 0 then return '' end
  return fault('approval_unlisted', name, function()
    local lives = string.format('%.0f', num(until_ms) - now + approval_kept())
    for i = 1, #missing do
      local set, member, score = unpack(missing[i])
      call('ZADD', set, score, member)
      call('PEXPIRE', set, lives, 'NX')
      call('PEXPIRE', set, lives, 'GT')
    end
  end)
end

-- What is under way of each tenant, counted from the records; nil where that is too much for one script. Every turn has
-- a timer of its own (rule 3), and whoever calls has seen to that. What is no record counts for nothing (rule 18).
local function count_turns()
  local counted = {}
  if call('ZCARD', TIMERS) > num(ARGV[7]) then return nil end
  local timers = call('ZRANGE', TIMERS, 0, -1)
  for i = 1, #timers do
    local tt = string.sub(timers[i], 1, 2) == 't:' and string.sub(timers[i], 3)
    local tenant = tt and split(tt)
    local found = tenant and redis.pcall('HMGET', turn_key(tt), TURN.calls, TURN.fence, TURN.bytes) or {}
    if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err, 0) end
    local calls, fence, bytes = unpack(found, 1, 3)
    if calls then
      local t = counted[tenant] or { unfinished = 0, out = 0, bytes = 0 }
      t.unfinished, t.bytes, counted[tenant] = t.unfinished + 1, t.bytes + (sound(bytes) or 0), t
      if fence and string.sub(fence, 1, 2) ~= 's:' then t.out = t.out + 1 end
    end
  end
  return counted
end

local counted = ARGV[8] == 'tenant' and count_turns()
function kinds.tenant(tenant)
  if not counted then return 'NOT_COUNTED' end
  local is, says = counted[tenant] or { unfinished = 0, out = 0, bytes = 0 }, tenant_of(tenant)
  if says.lost then return 'FOUND unreadable' end
  if is.unfinished == says.unfinished and is.out == says.out and is.bytes == says.bytes then return '' end
  local more = string.format(' unfinished %d, counted %d; out %d, counted %d; bytes %.0f, counted %.0f', says.unfinished,
    is.unfinished, says.out, is.out, says.bytes, is.bytes)
  return fault('tenant_miscounted', tenant, function()
    call('HSET', tenant_key(tenant), TENANT.unfinished, is.unfinished, TENANT.out, is.out, TENANT.bytes,
      string.format('%.0f', is.bytes))
  end) .. more
end

local replies, look = {}, kinds[ARGV[8]]
for i = 9, #ARGV do
  local done, answer = alone(look, ARGV[i])
  -- A right that the user of Redis lacks is no fault of what lies there.
  if not done and (string.find(answer, 'executing the script can', 1, true) or string.find(answer, 'ACL failure in script', 1, true)) then
    error(answer, 0)
  end
  -- Something else is there under that name (rule 18): people have to look.
  replies[i - 8] = done and answer or 'FOUND foreign'
end
if #mended > 0 then
  local named = table.concat(mended, ',', 1, math.min(#mended, NAMED_MAX))
  call('XADD', P .. 'audit', '*', 'audit', ARGV[3] .. ',"mended":' .. #mended .. ',"named":[' .. named .. ']}}')
end
return replies
