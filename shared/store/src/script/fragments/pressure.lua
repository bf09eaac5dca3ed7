-- Memory is short (rules 13 and 19): what is in must drain, for that is what frees memory; but of what drains, only so
-- much is out at a time, so that results always find room. From 100 % of `maxmemory` on Redis refuses scripts without
-- `allow-oom`. Those that drain are then called a second time, with that flag and with AT_BRIM (see script/mod.rs).
local SLICES_TIGHT, SLICES_AT_BRIM = 256, 16

-- Slices on the `ready` streams that have not ended.
local function slices_out(enough)
  local out = 0
  for _, priority in ipairs({ 'urgent', 'high', 'normal', 'low' }) do
    local stream = P .. 'ready:' .. priority
    local groups = call('EXISTS', stream) == 1 and call('XINFO', 'GROUPS', stream) or {}
    local f = {}
    for i = 1, groups[1] and #groups[1] or 0, 2 do f[groups[1][i]] = groups[1][i + 1] end
    if f['pending'] then
      -- Since an unread entry was deleted, Redis cannot tell how many are unread, and Redis 7.0 tells too many after a
      -- restart. No more are unread than are neither held nor read: as many are counted, if there is any doubt.
      local most = math.max(call('XLEN', stream) - f['pending'], 0)
      local unread = f['lag']
      if most == 0 then
        unread = 0
      elseif not unread or unread > most then
        unread = #call('XRANGE', stream, '(' .. f['last-delivered-id'], '+', 'COUNT', enough)
      end
      out = out + f['pending'] + unread
    end
  end
  return out
end

-- How many more slices may go out; nil where there is no bound.
local function room(tight)
  if not (tight or AT_BRIM) then return nil end
  local info = call('INFO', 'memory')
  local used, max = num(string.match(info, 'used_memory:(%d+)')), num(string.match(info, 'maxmemory:(%d+)'))
  if max == 0 or used < max * 0.8 then return nil end
  -- What is kept (replies that nobody reads, records) has come to fill it all: only they can make room now.
  if used >= max * 1.5 then return 0 end
  local bound = (AT_BRIM or used >= max) and SLICES_AT_BRIM or SLICES_TIGHT
  -- One after the other: in a small Redis, connections alone may hold a fifth of it.
  if used >= max * 1.2 then bound = 1 end
  return math.max(bound - slices_out(bound), 0)
end
