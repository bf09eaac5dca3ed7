#!lua flags=allow-oom
-- retire: looks after the streams that runtimes outside read: what is acknowledged goes, and an empty one whose agent is
-- no longer configured goes altogether.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per stream: queue · '1' where its agent is no longer configured, else ''
-- reply how many streams went
-- effect XTRIM; DEL, SREM externals
clock(ARGV[1])
local gone = 0
for i = 1, num(ARGV[2]) do
  local queue, orphan = ARGV[i * 2 + 1], ARGV[i * 2 + 2] == '1'
  local stream = P .. queue
  local there = call('EXISTS', stream) == 1
  if there then trim(stream) end
  if orphan and (not there or call('XLEN', stream) == 0) then
    call('DEL', stream)
    call('SREM', P .. 'externals', queue)
    gone = gone + 1
  end
end
return gone
