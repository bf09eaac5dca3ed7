-- Leases of those of whom one at a time does something for a shard. They end by shard time: keys that Redis ends stay for as
-- long as its clock steps back. That Redis ends them, too, only removes what nobody takes any more.

-- Whether somebody else has the lease. A build before this one wrote no time: its lease ends when Redis ends it. Keys may
-- hold anything (rule 18).
local function is_taken(lease, who, now)
  local found = redis.pcall('GET', lease)
  local holder, until_ms = string.match(type(found) == 'string' and found or '', '^(%S+) ?(%d*)$')
  return holder and holder ~= who and (until_ms == '' or num(until_ms) > now)
end

local function take(lease, who, now, lease_ms)
  call('SET', lease, string.format('%s %.0f', who, now + num(lease_ms)), 'PX', lease_ms)
end
