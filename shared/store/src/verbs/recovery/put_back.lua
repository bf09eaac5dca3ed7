#!lua flags=allow-oom
-- put_back: a scheduler stops in order and returns the inbound entries that it has not decided about: others read them
-- at once, and no crash counts against them.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 consumer · 3 entries at most · 4… streams (turns, tasks)
-- reply {how many were returned, 1 where it still holds some, else 0}
-- effect XADD under a fresh entry id, with its `queued` mark; HSET meta; XACK and XDEL of the old one
clock(ARGV[1])
local bound, returned, more = num(ARGV[3]), 0, 0
for q = 4, #ARGV do
  local stream, acked = P .. ARGV[q], {}
  local held = redis.pcall('XPENDING', stream, GROUP, '-', '+', bound + 1, ARGV[2])
  if held.err then held = {} end
  for i = 1, math.min(#held, bound) do
    local entry = held[i][1]
    local found = call('XRANGE', stream, entry, entry)
    if found[1] and #found[1][2] <= 1000 then
      local fields, origin = found[1][2], false
      for f = 1, #fields, 2 do origin = origin or fields[f] == INBOUND.origin end
      if not origin then fields[#fields + 1], fields[#fields + 2] = INBOUND.origin, entry end
      local anew = call('XADD', stream, '*', unpack(fields))
      came_anew(anew)
      for f = 1, #fields, 2 do
        local tt = fields[f] == INBOUND.given and fields[f + 1]
        if tt and call('HGET', QUEUED, tt) == entry then call('HSET', QUEUED, tt, anew) end
      end
      acked[#acked + 1] = entry
    end
  end
  if #held > bound then more = 1 end
  returned = returned + #acked
  end_inbound(stream, acked)
end
return { returned, more }
