#!lua
-- submit: puts turns on the shard's inbound stream, unless the queue is full; an id makes it idempotent.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 turns_max · 3 inbox_unread_max · 4 turns_bytes_max · 5 inboxes_max per tenant ·
--       6 reply retain ms · 7 tenant_bytes_max · 8 count, then per turn: tenant · turn id or '' · digest · inbox or '' · payload
-- reply per turn: OK <entry> · DUPLICATE · CONFLICT · QUEUE_FULL · INBOX_FULL · TOO_MANY_INBOXES · PRESSURE
-- effect XADD turns; an id that is accepted is remembered until its turn ends and dedupe_for after it, HSET queued; ZADD
--       inboxes (a new one)
local now = shard_time(ARGV[1])
local turns_max, inbox_max, bytes_max = num(ARGV[2]), num(ARGV[3]), num(ARGV[4])
local inboxes_max, retain, count = num(ARGV[5]), num(ARGV[6]), num(ARGV[8])
local stream = P .. 'turns'
local length = call('XLEN', stream)
local pressure, memory_max = unpack(call('HMGET', META, 'pressure', 'memory_max'))
pressure = pressure == '1'
-- Rule 19: what waits may not fill the memory. Few turns cannot; of more, some are weighed.
memory_max = num(memory_max or 0)
if memory_max > 0 then bytes_max = math.min(bytes_max, memory_max / 2) end
local tenant_max = tenant_bytes_max(ARGV[7], memory_max)
local full = length >= 64 and call('MEMORY', 'USAGE', stream, 'SAMPLES', 5) >= bytes_max
local replies = {}

-- Whether a tenant's turns that were admitted leave no room for this one: else it would fill the stream before it is refused.
local function is_tenant_full(tenant, bytes)
  return (sound(call('HGET', tenant_key(tenant), TENANT.bytes)) or 0) + bytes > tenant_max
end

for i = 1, count do
  local at = i * 5 + 4
  local tenant, id, digest, inbox, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  -- Rule 9: the id is looked for before the bound, so an accepted id never hears QUEUE_FULL.
  local known = id ~= '' and call('GET', id_key(tenant .. ':' .. id))
  if known and is_waiting(tenant .. ':' .. id, known) then
    replies[i] = string.sub(known, 2) == digest and 'DUPLICATE' or 'CONFLICT'
  elseif pressure then
    replies[i] = 'PRESSURE'
  elseif full or length >= turns_max or is_tenant_full(tenant, #payload) then
    replies[i] = 'QUEUE_FULL'
  else
    replies[i] = no_inbox(tenant, inbox, inbox_max, inboxes_max, now, retain)
  end
  if not replies[i] then
    if id ~= '' then
      call('SET', id_key(tenant .. ':' .. id), 'q' .. digest)
      -- The entry names its id, so that whoever ends it unadmitted can close that.
      local entry = call('XADD', stream, '*', INBOUND.turn, payload, INBOUND.given, tenant .. ':' .. id)
      call('HSET', QUEUED, tenant .. ':' .. id, entry)
      replies[i] = 'OK ' .. entry
    else
      replies[i] = 'OK ' .. call('XADD', stream, '*', INBOUND.turn, payload)
    end
    length = length + 1
  end
end
return replies
