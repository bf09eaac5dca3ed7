-- The end of a turn or task is asked for: by whoever cancels it, or because what began it ends.

-- Asks for the end of one that is under way. What nobody holds is ended by the next promote; what is held is flagged, and
-- its holder ends it (rule 6). Answers OK or FLAGGED, or nil where it is not under way. `below`: the reason for what it has begun.
local function cancel_live(tt, why, below, now, lease)
  local key, tenant = turn_key(tt), split(tt)
  local calls, fence, queue, done, crashes, cancelled = unpack(call('HMGET', key, TURN.calls, TURN.fence, TURN.queue,
    TURN.done, TURN.crashes, TURN.cancelled))
  if not calls then return nil end
  -- The first reason stays.
  if not cancelled then call('HSET', key, TURN.cancelled, why, TURN.fresh, '') end
  call('ZADD', TIMERS, now, 't:' .. tt)
  end_below(tt, below, now)
  if not fence or string.sub(fence, 1, 2) == 's:' then return 'OK' end
  queue = queue_of(queue, crashes, fence)
  local holder = pending(P .. queue, fence)
  if holder then
    call('SADD', P .. 'cancel:' .. holder, tt)
    call('PEXPIRE', P .. 'cancel:' .. holder, lease * 2)
    return 'FLAGGED'
  end
  local rec = { calls = num(calls), fence = fence, queue = queue, done = num(done or 0) }
  -- Whether somebody holds it all the same is not known: promote gives whoever does a lease to end it.
  if whereabouts(P .. queue, fence) == 'gone' then return 'OK' end
  -- Nobody holds the slice: nobody shall begin it before promote comes by, which gives the ending out.
  end_unread(tt, key, rec, tenant_of(tenant), 'cancelled', now, now, 0)
  return 'OK'
end

-- Keeps a mark for one that has not come yet, bounded in number and time: whoever admits it ends it (rule 22).
local function cancel_early(tt, why, now, keep, marks_max)
  local tenant, turn = split(tt)
  local marks = early_key(tenant)
  call('ZREMRANGEBYSCORE', marks, '-inf', now)
  if not call('ZSCORE', marks, turn) and call('ZCARD', marks) >= marks_max then return 'FULL' end
  call('ZADD', marks, now + keep, turn)
  call('PEXPIRE', marks, keep)
  call('SET', early_key(tt), why, 'PX', keep)
  call('HSET', META, 'early_ms', now + keep)
  return 'WAITING'
end
