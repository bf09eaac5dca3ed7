#!lua flags=allow-oom
-- cancel: asks for the end of a turn or a task. What nobody holds is ended by the next promote; what is held is
-- flagged, and its holder ends it (rule 6). What has not come yet is waited for (rule 22): a mark is kept, bounded in
-- number and time, and whoever admits the turn ends it.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 tenant:turn · 3 reason (bounded) · 4 lease ms · 5 how long a mark is kept, ms ·
--       6 marks of one tenant at most
-- reply OK · FLAGGED (its running calls end first), each with a blank and the inner turn that its call has waited for,
--       where there is one: that is to be cancelled, too · ENDED (it had ended already) · WAITING (nothing of that name has
--       come yet; when it comes, it ends) · FULL (as WAITING, but too many marks wait: none is kept) · UNKNOWN (it was
--       admitted once, and its record is lost)
-- effect HSET turn cancelled, ZADD timers, SADD cancel of its holder; XDEL of a slice that nobody has read; SET
--       and ZADD of a mark
local now = shard_time(ARGV[1])
local tt, why = ARGV[2], ARGV[3]
local key = turn_key(tt)
local tenant, turn = split(tt)

local function wait_for_it()
  local id = call('GETRANGE', id_key(tt), 0, 0)
  if id == 'e' then return 'ENDED' elseif id == 'a' then return 'UNKNOWN' end
  local marks, keep = early_key(tenant), num(ARGV[5])
  call('ZREMRANGEBYSCORE', marks, '-inf', now)
  if not call('ZSCORE', marks, turn) and call('ZCARD', marks) >= num(ARGV[6]) then return 'FULL' end
  call('ZADD', marks, now + keep, turn)
  call('PEXPIRE', marks, keep)
  call('SET', early_key(tt), why, 'PX', keep)
  call('HSET', META, 'early_ms', now + keep)
  return 'WAITING'
end

local calls, fence, queue, done, crashes, inner, waited = unpack(call('HMGET', key, TURN.calls, TURN.fence, TURN.queue,
  TURN.done, TURN.crashes, TURN.inner, TURN.waited))
if not calls then return call('EXISTS', done_key(tt)) == 1 and 'ENDED' or wait_for_it() end
-- An inner turn of an earlier call has ended, before that call did.
local also = inner and num(waited) == num(done or 0) and ' ' .. inner or ''
call('HSET', key, TURN.cancelled, why, TURN.fresh, '')
call('ZADD', TIMERS, now, 't:' .. tt)
if not fence or string.sub(fence, 1, 2) == 's:' then return 'OK' .. also end
queue = queue_of(queue, crashes, fence)
local holder = pending(P .. queue, fence)
if holder then
  call('SADD', P .. 'cancel:' .. holder, tt)
  call('PEXPIRE', P .. 'cancel:' .. holder, num(ARGV[4]) * 2)
  return 'FLAGGED' .. also
end
local rec = { calls = num(calls), fence = fence, queue = queue, done = num(done or 0) }
-- Whether somebody holds it all the same is not known: promote gives whoever does a lease to end it.
if whereabouts(P .. queue, fence) == 'gone' then return 'OK' .. also end
-- Nobody holds the slice: nobody shall begin it before promote comes by, which gives the ending out.
end_unread(tt, key, rec, tenant_of(tenant), 'cancelled', now, now, 0)
save_tenants()
return 'OK' .. also
