#!lua flags=allow-oom
-- ensure_groups: makes the streams and groups of the shard where they are missing, however full memory is: a scheduler
-- that has just started must be able to drain a backlog that fills it.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2… streams
-- reply how many were made
-- effect XGROUP CREATE, SADD
local made = 0
for i = 2, #ARGV do
  if ensure_group(ARGV[i]) then made = made + 1 end
end
return made
