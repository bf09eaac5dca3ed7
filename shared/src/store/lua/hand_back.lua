#!lua flags=allow-oom
-- hand_back: a worker returns slices that it has not started, so that another leases them at once.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per slice: tenant:turn · fence · queue
-- reply per slice: OK · STALE
-- effect XADD ready under a fresh entry id, HSET turn f, XACK
clock(ARGV[1])
local acked = {}
local replies = {}
for i = 1, num(ARGV[2]) do
  local at = i * 3
  local tt, fence, queue = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local key, word = turn_key(tt), 'STALE'
  local m = call('HMGET', key, 'f', 'dn')
  local body = m[1] == fence and body_of_entry(queue, fence)
  if body then
    body = rest_of(body, num(m[2] or 0))
    call('HSET', key, 'f', dispatch(queue, tt, body.meta, body.first, body.crashes, body.attempt, body.calls))
    word = 'OK'
  end
  acked[queue] = acked[queue] or {}
  table.insert(acked[queue], fence)
  replies[i] = word
end
for queue, entries in pairs(acked) do ack_and_trim(P .. queue, entries) end
return replies
