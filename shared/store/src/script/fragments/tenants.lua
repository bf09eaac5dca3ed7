-- Counters per tenant and batch: read once, changed in memory, written once by `save_tenants`.
local tenants = {}

local function tenant_of(tenant)
  local t = tenants[tenant]
  if not t then
    local unfinished, out, day_used, day_end = unpack(call('HMGET', tenant_key(tenant), TENANT.unfinished, TENANT.out,
      TENANT.day_used, TENANT.day_end))
    t = { unfinished = num(unfinished or 0), out = num(out or 0), day_used = num(day_used or 0), day_end = num(day_end or 0) }
    tenants[tenant] = t
  end
  return t
end

local function save_tenants()
  for name, t in pairs(tenants) do
    local unfinished, out = string.format('%d', t.unfinished), string.format('%d', t.out)
    -- Whoever looked at no budget leaves the day alone.
    if t.rolled then
      call('HSET', tenant_key(name), TENANT.unfinished, unfinished, TENANT.out, out, TENANT.day_used, t.day_used,
        TENANT.day_end, t.day_end)
    else
      call('HSET', tenant_key(name), TENANT.unfinished, unfinished, TENANT.out, out)
    end
  end
end
