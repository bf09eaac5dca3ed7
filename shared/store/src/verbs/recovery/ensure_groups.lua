#!lua flags=allow-oom
-- ensure_groups: makes the streams and groups of the shard where they are missing, however full memory is: a scheduler
-- that has just started must be able to drain a backlog that fills it.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2… streams
-- reply how many were made
-- effect XGROUP CREATE
local made = 0
for i = 2, #ARGV do
  local stream = P .. ARGV[i]
  local found = false
  if call('EXISTS', stream) == 1 then
    for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do found = found or group[2] == GROUP end
  end
  if not found then
    call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    made = made + 1
  end
end
return made
