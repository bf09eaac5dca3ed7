#!lua flags=allow-oom
-- prune: forgets the budgets of agents that have been idle for a day after their day ended: they say nothing any more.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 cursor (0 begins)
-- reply {next cursor (0: the round is complete), how many were forgotten}
-- effect HDEL budgets
local now = clock(ARGV[1])
local found = call('HSCAN', P .. 'budgets', ARGV[2], 'COUNT', 200)
local old = {}
for i = 1, #found[2], 2 do
  local name, text = found[2][i], found[2][i + 1]
  if #text == 40 then
    local _, tick_end, _, day_end = struct.unpack('<dddd', text)
    if math.max(tick_end, day_end) + 86400000 <= now and call('EXISTS', P .. 'lane:' .. name) == 0 then old[#old + 1] = name end
  end
end
for from = 1, #old, 500 do call('HDEL', P .. 'budgets', unpack(old, from, math.min(from + 499, #old))) end
return { found[1], tostring(#old) }
