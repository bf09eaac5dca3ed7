#!lua flags=allow-oom
-- notices: what has happened to approvals of some tenants, for whoever tells others of it, and what it has told by now. One
-- of a name at a time has the lease. What it has not told yet comes again, the oldest first, and then what is new.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 name · 3 process · 4 lease ms · 5 entries of a tenant at most · 6 count of tenants, then per
--       tenant: tenant · count of entries that were told, then the id of each
-- reply {HELD} (another has the lease) · {OK, now, per tenant {per entry {id, its fields, or nothing where it is gone}}}
-- effect SET follower; XGROUP, XREADGROUP, XACK approvals
local now = shard_time(ARGV[1])
local lease, process, most = P .. 'follower:' .. ARGV[2], ARGV[3], num(ARGV[5])
if is_taken(lease, process, now) then return { 'HELD' } end
take(lease, process, now, ARGV[4])
local group = 'told:' .. ARGV[2]

-- Keys may hold anything (rule 18): one that is no stream has nothing.
local function read(key, after, count)
  local streams = redis.pcall('XREADGROUP', 'GROUP', group, 'all', 'COUNT', count, 'STREAMS', key, after)
  if not streams or streams.err then return {} end
  return streams[1][2]
end

local function notices_of(tenant, first, count)
  local key = P .. 'approvals:' .. tenant
  if call('EXISTS', key) == 0 then return {} end
  -- It is there already but for the first time.
  redis.pcall('XGROUP', 'CREATE', key, group, '0')
  for i = first, first + count - 1 do redis.pcall('XACK', key, group, ARGV[i]) end
  local entries = read(key, '0', most)
  if #entries < most then
    for _, entry in ipairs(read(key, '>', most - #entries)) do entries[#entries + 1] = entry end
  end
  return entries
end

local found, at = {}, 7
for i = 1, num(ARGV[6]) do
  local count = num(ARGV[at + 1])
  found[i] = notices_of(ARGV[at], at + 2, count)
  at = at + 2 + count
end
return { 'OK', now, found }
