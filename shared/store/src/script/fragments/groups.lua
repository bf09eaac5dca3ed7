-- Groups of streams: made where they are missing.

-- The streams that have had their group. Where somebody has destroyed it, living workers may still hold what it gave
-- out, and no fence is given out twice (rule 4): the group begins at the end, and what was in the stream is dispatched
-- anew from the records, under other fences. Inbound entries have no record yet; admit fences them.
-- Answers whether it was made.
local function ensure_group(name)
  local first = call('SADD', P .. 'grouped', name) == 1
  if group_of(P .. name) then return false end
  local from = (first or string.sub(name, 1, 6) ~= 'ready:') and '0' or '$'
  call('XGROUP', 'CREATE', P .. name, GROUP, from, 'MKSTREAM')
  return true
end
