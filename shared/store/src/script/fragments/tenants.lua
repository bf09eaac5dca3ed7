-- Counters per tenant and batch: read once, changed in memory, written once by `save_tenants`. Of what a hand has changed into
-- something else, a count of turns counts as none (`doctor` compares it with the records), and a day as used up until it ends.
local tenants = {}

local function tenant_of(tenant)
  local t = tenants[tenant]
  if not t then
    local unfinished, out, day_used, day_end = unpack(call('HMGET', P .. 'tenant:' .. tenant, TENANT.unfinished, TENANT.out,
      TENANT.day_used, TENANT.day_end))
    local lost = day_used and not sound(day_used) or day_end and not sound(day_end)
    t = { unfinished = sound(unfinished) or 0, out = sound(out) or 0, day_used = sound(day_used) or 0, day_end = sound(day_end) or 0,
      lost = lost }
    tenants[tenant] = t
  end
  return t
end

local function save_tenants()
  for name, t in pairs(tenants) do
    local unfinished, out = string.format('%d', t.unfinished), string.format('%d', t.out)
    -- Whoever looked at no budget leaves the day alone.
    if t.rolled then
      call('HSET', P .. 'tenant:' .. name, TENANT.unfinished, unfinished, TENANT.out, out, TENANT.day_used, t.day_used,
        TENANT.day_end, t.day_end)
    else
      call('HSET', P .. 'tenant:' .. name, TENANT.unfinished, unfinished, TENANT.out, out)
    end
  end
end
