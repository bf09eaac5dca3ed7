#!lua flags=allow-oom
-- reject: takes inbound entries that cannot be admitted to the dead stream, each with its reason and a reply.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 reply retain ms · 3 dead_max entries · 4 dedupe_for ms · 5 stream (turns or tasks) ·
--       6 inbox_unread_max · 7 inboxes_max · 8 count, then per entry: entry · reason · raw (bounded) · tenant or '',
--       without an inbox one that is not configured · inbox or '' · reply JSON or '' · tenant:turn that its producer
--       gave, where it could be read, or '' · digest of the content
-- reply per entry: OK · STALE (somebody else has ended it)
-- effect XADD dead, XADD replies (unless its bounds are exceeded: then the dead stream alone tells), DEL id (what is
--       refused may be sent again), ZADD absent (for producers, whom no reply can tell), XACK
local now, redis_ms, tight = clock(ARGV[1])
local retain, dead_max, dedupe, stream = num(ARGV[2]), num(ARGV[3]), num(ARGV[4]), P .. ARGV[5]
local unread_max, inboxes_max = num(ARGV[6]), num(ARGV[7])
local replies = {}

-- Refusals go beyond the bound of what is unread, for that bound itself is a reason to refuse; but not for ever.
local function takes(tenant, inbox)
  if inbox == '' or not (has_inbox(tenant, inbox) or has_room_for_inbox(tenant, inboxes_max, now, retain)) then
    return false
  end
  return unread(tenant .. ':' .. inbox, unread_max * 2) < unread_max * 2
end

-- A tenant that is not configured has no inbox. Producers that wait for a reply look here.
local ABSENT_MS, ABSENT_MAX = 60000, 1000
local function note_absent(tenant)
  local absent = P .. 'absent'
  call('ZREMRANGEBYSCORE', absent, '-inf', now - ABSENT_MS)
  if call('ZCARD', absent) >= ABSENT_MAX then return end
  call('ZADD', absent, now, tenant)
  call('PEXPIRE', absent, ABSENT_MS)
end

local function id_of(tt) return tt ~= '' and call('GET', id_key(tt)) or '' end

for i = 1, num(ARGV[8]) do
  local at = i * 8 + 1
  -- The entry is the fence: whoever ends it writes its one reply.
  if is_open(stream, ARGV[at]) then
    -- Before anything is written: a key that is no text would stop every try, each behind one more reply. It is nobody's.
    local is_read, id = alone(id_of, ARGV[at + 6])
    call('XADD', P .. 'dead', 'MAXLEN', '~', dead_max, '*', 'from', ARGV[5], 'entry', ARGV[at],
      'reason', ARGV[at + 1], 'raw', ARGV[at + 2], 'tenant', ARGV[at + 4] ~= '' and ARGV[at + 3] or '')
    if ARGV[at + 3] ~= '' and ARGV[at + 4] == '' and not tight then alone(note_absent, ARGV[at + 3]) end
    if ARGV[at + 5] ~= '' then
      local done, fits = alone(takes, ARGV[at + 3], ARGV[at + 4])
      if done and fits then
        -- At once, for the next of the batch is judged by it.
        use_inboxes({ [ARGV[at + 3]] = { now, ARGV[at + 4] } }, retain)
        reply_to(ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
      end
    end
    local found = call('XRANGE', stream, ARGV[at], ARGV[at])
    if ARGV[at + 6] ~= '' then
      -- Of another content, the id is another turn's.
      if is_read and id == 'q' .. ARGV[at + 7] then
        call('DEL', id_key(ARGV[at + 6]))
        call('HDEL', QUEUED, ARGV[at + 6])
      end
    elseif found[1] then
      close_id(ARGV[at], found[1][2], dedupe)
    end
    end_inbound(stream, { ARGV[at] })
    replies[i] = 'OK'
  else
    replies[i] = 'STALE'
  end
end
save_inboxes(now, redis_ms, retain, tight)
return replies
