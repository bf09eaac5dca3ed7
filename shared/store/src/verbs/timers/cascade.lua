#!lua flags=allow-oom
-- cascade: ends what a turn or task has begun that was cancelled, or has failed: some of it, then more. Each member that is
-- asked to end marks what it has begun itself. Its timer stays until nothing is left: whoever comes next goes on.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:turn · 3 how many at most · 4 lease ms · 5 how long a mark of one that has not come yet is
--       kept, ms · 6 such marks of one tenant at most
-- reply {how many were asked to end, how many are left, 'ASIDE <why>'…}
-- effect as of cancel, for each; ZREM under, HDEL cascades, ZREM timers
local now = clock(ARGV[1])
local tt, most, lease, keep, marks_max = ARGV[2], num(ARGV[3]), num(ARGV[4]), num(ARGV[5]), num(ARGV[6])
local tenant = split(tt)
local why = redis.pcall('HGET', P .. 'cascades', tt)
if type(why) ~= 'string' then why = 'what began it is over' end
local reply = { 0, 0 }

local function end_one(member)
  local name = tenant .. ':' .. member
  if cancel_live(name, why, why, now, lease) then return end
  -- It has ended, but what it began may not have; or nobody has decided about it so far.
  end_below(name, why, now)
  if redis.pcall('GETRANGE', id_key(name), 0, 0) == 'q' then cancel_early(name, why, now, keep, marks_max) end
end

local function done_with()
  redis.pcall('HDEL', P .. 'cascades', tt)
  call('ZREM', TIMERS, 'c:' .. tt)
end

-- Rule 18: what is under a name may be anything, and stops nothing else.
local function aside(what, problem)
  reply[#reply + 1] = 'ASIDE ' .. problem
  put_aside('under', what, problem)
end

local members = redis.pcall('ZRANGE', under_key(tt), 0, most - 1)
if members.err or not tenant then
  aside(tt, members.err or 'no turn has this name')
  done_with()
  return reply
end
for i = 1, #members do
  local done, problem = alone(end_one, members[i])
  if not done then aside(tenant .. ':' .. members[i], problem) end
end
if #members > 0 then call('ZREM', under_key(tt), unpack(members)) end
reply[1], reply[2] = #members, call('ZCARD', under_key(tt))
if reply[2] == 0 then done_with() else call('ZADD', TIMERS, now, 'c:' .. tt) end
save_tenants()
return reply
