-- Counters per tenant and batch: read once, changed in memory, written once by `save_tenants`.
-- `q`: turns that have not ended; `out`: slices that are out; `du`, `de`: calls used today, and the day's end.
local tenants = {}

local function tenant_of(tenant)
  local t = tenants[tenant]
  if not t then
    local m = call('HMGET', tenant_key(tenant), 'q', 'out', 'du', 'de')
    t = { q = num(m[1] or 0), out = num(m[2] or 0), du = num(m[3] or 0), de = num(m[4] or 0) }
    tenants[tenant] = t
  end
  return t
end

local function save_tenants()
  for name, t in pairs(tenants) do
    call('HSET', tenant_key(name), 'q', t.q, 'out', t.out, 'du', t.du, 'de', t.de)
  end
end
