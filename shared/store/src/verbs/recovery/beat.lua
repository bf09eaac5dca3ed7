#!lua flags=allow-oom
-- beat: renews a consumer's lease and tells it what it should know.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 consumer · 3 lease ms (0: the consumer leaves) ·
--       4 what it says of itself, 'busy slots policy' (absent or empty: nothing)
-- reply {now, epoch began ms, policy generation, pressure ('1' or '0'), steps, step ms, what Redis calls itself, until
--       when begun calls may be marked ms, who had it drained and why, JSON ('' where nobody did), cancelled tenant:turn…}
-- effect HSET beats, HSET nodes (now, lease and what it says, for who looks on); the first beat of all makes reap wait; HDEL
--        drains where the consumer leaves
local now = clock(ARGV[1])
local began, run_id = epoch(now)
local lease = num(ARGV[3])
-- A worker is its consumers' names without their starts: it stays drained if it has to start over under a new name.
local worker, drained = string.match(ARGV[2], '^(w%-.+)%-%x+%-%d+$'), false
if worker then drained = call('HGET', P .. 'drains', worker) end
if lease > 0 then
  local fresh = call('HSET', P .. 'beats', ARGV[2], now + lease)
  -- The first beat of all: others' may have been deleted, and they get a lease to beat again before anybody reaps.
  if fresh == 1 and call('HLEN', P .. 'beats') == 1 then call('HDEL', META, 'reap_seen') end
  if ARGV[4] and ARGV[4] ~= '' then
    call('HSET', P .. 'nodes', ARGV[2], string.format('%d %d %s', now, lease, ARGV[4]) .. (drained and ' drained' or ''))
  end
else
  call('HDEL', P .. 'beats', ARGV[2])
  call('HDEL', P .. 'nodes', ARGV[2])
  call('HDEL', P .. 'suspects', ARGV[2], 'turns ' .. ARGV[2], 'tasks ' .. ARGV[2])
  if drained then call('HDEL', P .. 'drains', worker) end
end
local policy_gen, pressure, steps, step_ms = unpack(call('HMGET', META, 'policy_gen', 'pressure', 'steps', 'step_ms'))
local reply = { tostring(now), tostring(began), policy_gen or '0', pressure or '0', steps or '0', step_ms or '0', run_id,
  tostring(marks_ms), drained or '' }
local key = P .. 'cancel:' .. ARGV[2]
local cancelled = call('SMEMBERS', key)
if #cancelled > 0 then
  call('DEL', key)
  for i = 1, #cancelled do reply[#reply + 1] = cancelled[i] end
end
return reply
