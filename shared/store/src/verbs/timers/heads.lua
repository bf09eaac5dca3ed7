#!lua flags=no-writes,allow-oom
-- heads: reads the turns at the heads of lanes, as far as limits need to know them.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 turns per lane · 3 bytes in all, roughly · 4 count, then the lanes' names
-- reply per lane {per turn {tenant:turn, position of its next call, agent or '', meta or '', '1' where it comes back for places
--       that it gave back, or '', its calls from there on…}}: as many turns as fit
local bound, bytes, replies = num(ARGV[2]), num(ARGV[3]), {}

-- One turn; its record may be gone, or be no record at all.
local function head(tt)
  local calls, admitted, done, agent, meta, paid = unpack(call('HMGET', turn_key(tt), TURN.calls, TURN.admitted, TURN.done,
    TURN.agent, TURN.meta, TURN.paid))
  local next = math.max(whole(admitted or '0'), whole(done or '0'))
  local comes_back = paid and (whole(string.match(paid, '^(%d+) ')) or 0) > next
  local reply, fields = { tt, tostring(next), agent or '', meta or '', comes_back and '1' or '' }, {}
  for i = next, math.min(whole(calls or '0'), next + 500) - 1 do fields[#fields + 1] = TURN.call .. i end
  local blobs = #fields > 0 and call('HMGET', turn_key(tt), unpack(fields)) or {}
  for i = 1, #blobs do
    reply[#reply + 1] = blobs[i] or ''
    bytes = bytes - #reply[#reply]
  end
  bytes = bytes - #reply[4] - 200
  return reply
end

for i = 1, num(ARGV[4]) do
  local name, turns = ARGV[4 + i], {}
  local tenant = string.match(name, '^([^:@]+):[^:@]+$')
  -- What is no lane has no turns (rule 18): whoever releases it finds that out.
  local found = bytes > 0 and redis.pcall('ZRANGE', P .. 'lane:' .. name, 0, bound - 1) or {}
  for j = 1, #found do
    if bytes <= 0 then break end
    local tt = tenant and tenant .. ':' .. found[j] or found[j]
    local readable, turn = alone(head, tt)
    turns[j] = readable and turn or { tt, '0', '', '', '' }
  end
  replies[i] = turns
end
return replies
