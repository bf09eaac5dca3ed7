#!lua flags=allow-oom
-- ask_approval: people are asked about a call, and its slice is parked until they have decided, or may not any more; the
-- worker's slot is free. What was asked about it before, when it was another call, counts no more.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 approvals of a tenant that may wait · 3 of an agent · 4 ms that
--       replies are kept · 5 count, then per call: tenant · turn · fence · queue · position · approval · binding · ms that
--       people may decide, or '' · agent · tool · version · arguments JSON · their short form JSON, or '' where that is the
--       same · why JSON · demands · pointers that may be changed JSON · inbox of an early reply, or '' · that reply
--       (`{asked_ms}` and `{until_ms}` stand for the times) · '1' where calls behind it ran beside it
-- reply per call: OK · ALREADY · CANCELLED (nothing written: settle it as cancelled) · STALE · GAP (a result before the
--       position is missing) · DECIDED (meanwhile, or the call has begun: nothing written, look again) · FULL (likewise)
-- effect HSET approval with a TTL, ZADD asked, XADD approvals and replies; HSET turn (approval), ZADD timers and delayed,
--       XACK, ZREM held
local now, redis_ms, tight = clock(ARGV[1])
local acked = {}
local now_text = string.format('%d', now)

-- Those whose turns went without a word leave their places. Bounded: a few whenever one is asked for.
local function sweep(tenant)
  call('ZREMRANGEBYSCORE', P .. 'asked:' .. tenant, '-inf', now - 60000)
  for _, name in ipairs(call('ZRANGE', P .. 'asked', 0, 7)) do
    if redis.pcall('HGET', approval_key(name), APPROVAL.state) ~= 'waiting' then call('ZREM', P .. 'asked', name) end
  end
end

-- A set lives as long as the last of its members.
local function add(set, member, score, lives)
  call('ZADD', set, score, member)
  call('PEXPIRE', set, string.format('%d', lives), 'NX')
  call('PEXPIRE', set, string.format('%d', lives), 'GT')
end

local function write(at, tenant, name, record, until_ms)
  local about, lives = ARGV[at + 1] .. '/' .. ARGV[at + 4], until_ms - now + approval_kept()
  local until_text = string.format('%d', until_ms)
  local exact, short = ARGV[at + 11], ARGV[at + 12]
  local is_short = short ~= ''
  if not is_short then short = exact end
  call('DEL', record)
  call('HSET', record, APPROVAL.state, 'waiting', APPROVAL.call, about, APPROVAL.binding, ARGV[at + 6],
    APPROVAL.expires_ms, ARGV[at + 7], APPROVAL.agent, ARGV[at + 8], APPROVAL.tool, ARGV[at + 9], APPROVAL.version,
    ARGV[at + 10], APPROVAL.arguments, short, APPROVAL.bytes, #exact, APPROVAL.why, ARGV[at + 13], APPROVAL.demands,
    ARGV[at + 14], APPROVAL.may_narrow, ARGV[at + 15], APPROVAL.asked_ms, now_text, APPROVAL.until_ms, until_text)
  if is_short then call('HSET', record, APPROVAL.abridged, '1', APPROVAL.exact, exact) end
  call('PEXPIRE', record, string.format('%d', lives))
  add(P .. 'asked:' .. tenant, ARGV[at + 5], until_text, lives)
  add(P .. 'asked', name, now_text, lives)
  tell_approval(tenant, ARGV[at + 5], 'asked', about, now, 'agent', ARGV[at + 8], 'tool', ARGV[at + 9], 'version',
    ARGV[at + 10], 'arguments', short, 'abridged', is_short and '1' or '', 'bytes', #exact, 'why', ARGV[at + 13],
    'until_ms', until_text)
  local times = { asked_ms = now_text, until_ms = until_text }
  local early = string.gsub(ARGV[at + 17], '{(%l+_ms)}', times)
  reply_to(tenant, ARGV[at + 16], early)
end

local function ask(at)
  local tenant, turn, fence, queue, position, id = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], num(ARGV[at + 4]), ARGV[at + 5]
  local tt, name = tenant .. ':' .. turn, tenant .. ':' .. id
  local key, record = turn_key(tt), approval_key(name)
  local word, deadline = parkable(tt, key, fence, queue, position, acked)
  if word then return word end
  local before, begun = unpack(call('HMGET', key, TURN.approval, TURN.begun))
  -- Somebody who is gone had their consent, and has begun it: the mark that says so must not go (rule 25).
  if begun and num(string.match(begun, '^%d+')) == position then return 'DECIDED' end
  local state, until_text = unpack(call('HMGET', record, APPROVAL.state, APPROVAL.until_ms))
  local until_ms = num(until_text)
  if state == 'waiting' and (until_ms or 0) <= now or state and state ~= 'waiting' and state ~= 'void' then return 'DECIDED' end
  if state ~= 'waiting' then
    sweep(tenant)
    if approvals_full(tenant, ARGV[at + 8], now, ARGV[2], ARGV[3]) then return 'FULL' end
    until_ms = math.min(deadline, now + (num(ARGV[at + 7]) or deadline))
    write(at, tenant, name, record, until_ms)
  end
  if before and before ~= id then end_approval(tenant, before, 'void', now) end
  -- What is known of tries and crashes is of work that has come further since.
  call('HDEL', key, TURN.fence, TURN.begun, TURN.started, TURN.crashes, TURN.awaits)
  call('HSET', key, TURN.parked_fence, fence, TURN.has_history, '1', TURN.approval, id)
  park(tenant, tt, fence, queue, until_ms, deadline, now, acked)
  alone(give_places, tt, key, position, now)
  -- It is no failed try that waits.
  call('ZREM', P .. 'delayed', tt)
  -- Rule 25: what ran beside it and was dropped is not told as not executed.
  if ARGV[at + 18] == '1' then call('HSET', key, TURN.lost, now_text .. ' ' .. fence) end
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[5]) do replies[i] = word_of(ask, i * 19 - 13) end
save_inboxes(now_text, redis_ms, ARGV[4], tight)
save_tenants()
for queue, entries in pairs(acked) do ack_and_trim(P .. queue, entries) end
return replies
