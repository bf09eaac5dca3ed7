#!lua
-- reject: takes inbound entries that cannot be admitted to the dead stream, each with its reason and a reply.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 reply retain ms · 3 dead_max entries · 4 dedupe_for ms · 5 stream (turns or tasks) ·
--       6 count, then per entry: entry · reason · raw (bounded) · tenant or '' · inbox or '' · reply JSON or '' ·
--       tenant:turn that its producer gave, where it could be read, or '' · digest of the content
-- reply per entry: OK · STALE (somebody else has ended it)
-- effect XADD dead, XADD replies, DEL id (what is refused may be sent again), XACK
local now = clock(ARGV[1])
local retain, dead_max, dedupe, stream = num(ARGV[2]), num(ARGV[3]), num(ARGV[4]), P .. ARGV[5]
local replies = {}
for i = 1, num(ARGV[6]) do
  local at = i * 8 - 1
  -- The entry is the fence: whoever ends it writes its one reply.
  if is_open(stream, ARGV[at]) then
    call('XADD', P .. 'dead', 'MAXLEN', '~', dead_max, '*', 'from', ARGV[5], 'entry', ARGV[at],
      'reason', ARGV[at + 1], 'raw', ARGV[at + 2], 'tenant', ARGV[at + 3])
    if ARGV[at + 5] ~= '' then reply_to(ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]) end
    local found = call('XRANGE', stream, ARGV[at], ARGV[at])
    if ARGV[at + 6] ~= '' then
      -- Of another content, the id is another turn's.
      if call('GET', id_key(ARGV[at + 6])) == 'q' .. ARGV[at + 7] then
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
save_inboxes(now, retain)
return replies
