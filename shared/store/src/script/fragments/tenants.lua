-- Counters per tenant and batch: read once, changed in memory, written once by `save_tenants`. Of what a hand has changed into
-- something else, a count of turns counts as none (`doctor` compares it with the records), and a day as used up until it ends.
local tenants = {}

-- Bytes that the turns of one tenant may have which have not ended: as configured, and never more than a quarter of the memory
-- (0: it has no bound), so that one tenant's turns leave room for those of others.
local function tenant_bytes_max(configured, memory_max)
  local quarter = (num(memory_max or 0) or 0) / 4
  return quarter > 0 and math.min(num(configured), quarter) or num(configured)
end

local function tenant_of(tenant)
  local t = tenants[tenant]
  if not t then
    local unfinished, out, day_used, day_end, bytes = unpack(call('HMGET', P .. 'tenant:' .. tenant, TENANT.unfinished, TENANT.out,
      TENANT.day_used, TENANT.day_end, TENANT.bytes))
    local lost = day_used and not sound(day_used) or day_end and not sound(day_end)
    t = { unfinished = sound(unfinished) or 0, out = sound(out) or 0, day_used = sound(day_used) or 0, day_end = sound(day_end) or 0,
      bytes = sound(bytes) or 0, lost = lost }
    tenants[tenant] = t
  end
  return t
end

local function save_tenants()
  for name, t in pairs(tenants) do
    local unfinished, out, bytes = string.format('%d', t.unfinished), string.format('%d', t.out), string.format('%.0f', t.bytes)
    -- Whoever looked at no budget leaves the day alone.
    if t.rolled then
      call('HSET', P .. 'tenant:' .. name, TENANT.unfinished, unfinished, TENANT.out, out, TENANT.bytes, bytes,
        TENANT.day_used, t.day_used, TENANT.day_end, t.day_end)
    else
      call('HSET', P .. 'tenant:' .. name, TENANT.unfinished, unfinished, TENANT.out, out, TENANT.bytes, bytes)
    end
  end
end
