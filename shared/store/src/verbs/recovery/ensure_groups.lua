#!lua flags=allow-oom
-- ensure_groups: makes the streams and groups of the shard where they are missing, however full memory is: a scheduler
-- that has just started must be able to drain a backlog that fills it.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2… streams
-- reply how many were made
-- effect XGROUP CREATE, SADD
local made = 0
-- The streams that have had their group. Where somebody has destroyed it, living workers may still hold what it gave
-- out, and no fence is given out twice (rule 4): the group begins at the end, and what was in the stream is dispatched
-- anew from the records, under other fences. Inbound entries have no record yet; admit fences them.
local had = P .. 'grouped'
for i = 2, #ARGV do
  local stream = P .. ARGV[i]
  local found = false
  if call('EXISTS', stream) == 1 then
    for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do found = found or group[2] == GROUP end
  end
  local first = call('SADD', had, ARGV[i]) == 1
  if not found then
    local from = (first or string.sub(ARGV[i], 1, 6) ~= 'ready:') and '0' or '$'
    call('XGROUP', 'CREATE', stream, GROUP, from, 'MKSTREAM')
    made = made + 1
  end
end
return made
