-- Bounds of inboxes (rule 14): how many a tenant has, and how much waits unread in each.
local function replies_key(name) return P .. 'replies:' .. name end

-- The smaller of two entry ids; either may be nil.
local function earlier(a, b)
  if not (a and b) then return a or b end
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if num(a_ms) ~= num(b_ms) then return num(a_ms) < num(b_ms) and a or b end
  return num(a_seq) < num(b_seq) and a or b
end

-- The newest entry that a stream has ever had.
local function end_of(stream)
  local about = call('XINFO', 'STREAM', stream)
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then return about[i + 1] end
  end
end

-- Removes what all readers of an inbox (`tenant:inbox`) are done with, as far as they say so: those of a consumer group
-- by acknowledging, others by the key `read:<tenant>:<inbox>`, which names the last entry that they are done with.
-- Readers write that key: what it holds is not trusted. It may also name more than there is: where Redis has lost its
-- last writes and its clock has stepped back, what comes is numbered below what was read.
local function trim_inbox(name) -- rarely
  local stream, floor = replies_key(name), nil
  if call('EXISTS', stream) == 0 then return end
  for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do
    local f = {}
    for i = 1, #group, 2 do f[group[i]] = group[i + 1] end
    local ms, seq = string.match(f['last-delivered-id'], '^(%d+)-(%d+)$')
    local oldest = call('XPENDING', stream, f['name'])[2]
    floor = earlier(floor, oldest or ms .. '-' .. string.format('%.0f', num(seq) + 1))
  end
  local said = redis.pcall('GET', P .. 'read:' .. name)
  if type(said) == 'string' and string.match(said, '^%d+%-%d+$') and #said <= 40 and earlier(said, end_of(stream)) == said then
    floor = earlier(floor, said)
  end
  if floor then redis.pcall('XTRIM', stream, 'MINID', floor) end
end

-- How many replies wait in an inbox. Where these are `enough` to refuse turns, what was read is removed first.
local function unread(name, enough)
  local length = call('XLEN', P .. 'replies:' .. name)
  if length < enough then return length end
  trim_inbox(name)
  return call('XLEN', P .. 'replies:' .. name)
end

-- Whether a tenant may have an inbox that it does not have yet. Those that nobody has used for `retain` do not count.
local function has_room_for_inbox(tenant, max, now, retain)
  local key = P .. 'inboxes:' .. tenant
  if call('ZCARD', key) < max then return true end
  call('ZREMRANGEBYSCORE', key, '-inf', now - retain)
  return call('ZCARD', key) < max
end

local function has_inbox(tenant, inbox) return call('ZSCORE', P .. 'inboxes:' .. tenant, inbox) end

-- Marks inboxes as in use, given as tenant → list of score, inbox, score, inbox… A key that holds something else costs
-- the mark alone (rule 18).
local function use_inboxes(of, retain)
  for tenant, list in pairs(of) do
    for from = 1, #list, 1000 do
      redis.pcall('ZADD', P .. 'inboxes:' .. tenant, unpack(list, from, math.min(from + 999, #list)))
    end
    call('PEXPIRE', P .. 'inboxes:' .. tenant, retain)
  end
end

-- Why an inbox cannot take the reply to what is taken in now, or nil. A new one counts from now on: otherwise the refusal
-- that follows at admission would have no inbox either, and nobody would read it.
local function no_inbox(tenant, inbox, unread_max, inboxes_max, now, retain)
  if inbox == '' then return nil end
  if unread(tenant .. ':' .. inbox, unread_max) >= unread_max then return 'INBOX_FULL' end
  if has_inbox(tenant, inbox) then return nil end
  if not has_room_for_inbox(tenant, inboxes_max, now, retain) then return 'TOO_MANY_INBOXES' end
  use_inboxes({ [tenant] = { now, inbox } }, retain)
end
