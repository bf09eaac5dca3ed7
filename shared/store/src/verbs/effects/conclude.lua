#!lua flags=allow-oom
-- conclude: what came of a call that had claimed its effect key, so that it answers equal calls; those that wait for it
-- go on. Where Redis may have lost a claim of which nothing has come yet, the claim is said again (rule 8).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 count, then per call: tenant:tool:hash of the effect · claim · ENDED (it has this result) or
--       UNKNOWN (likewise, unless more is known) or UNDONE (it certainly did nothing) or OPEN (its end is to come) ·
--       ms that this is kept · result JSON, or '' · bytes of that before its output, or '' · bytes up to the output's end,
--       likewise (where memory is short, what is between them is not kept)
-- reply per call: OK · KNOWN (it stays as it was) · OTHERS (the claim is another call's)
-- effect HSET effect (by, ended, until_ms) with a TTL, or DEL; ZADD timers
local now, _, tight = clock(ARGV[1])

-- Waiters are parked, or about to be; what is there under a name may be anything (rule 18).
local function wake(by, fields)
  local turn = string.match(by, '^(.+)/%d+/%x*$')
  for i = 1, #fields, 2 do
    local waiter = string.sub(fields[i], 1, #EFFECT.waiter) == EFFECT.waiter and string.sub(fields[i], #EFFECT.waiter + 1)
    if waiter and redis.pcall('HGET', turn_key(waiter), TURN.awaits) == turn then
      call('ZADD', TIMERS, 'LT', now, 't:' .. waiter)
    end
  end
end

local function conclude(effect, by, word, window, result, before, upto)
  local key = effect_key(effect)
  local held, ended, until_ms = unpack(call('HMGET', key, EFFECT.by, EFFECT.ended, EFFECT.until_ms))
  if held and (num(until_ms) or 0) <= now then held, ended = nil, nil end
  if held and held ~= by then return 'OTHERS' end
  -- Whoever finds a begun call without its end knows less than whoever has seen that.
  if ended and word ~= 'ENDED' then return 'KNOWN' end
  if word == 'OPEN' then
    if held then return 'KNOWN' end
    call('DEL', key)
    call('HSET', key, EFFECT.by, by, EFFECT.until_ms, string.format('%d', now + window))
    call('PEXPIRE', key, window)
    return 'OK'
  end
  local fields = held and call('HGETALL', key) or {}
  call('DEL', key)
  if word ~= 'UNDONE' then
    -- That it was carried out is what stops an equal call.
    if tight and before ~= '' then result = string.sub(result, 1, num(before)) .. 'null' .. string.sub(result, num(upto) + 1) end
    call('HSET', key, EFFECT.by, by, EFFECT.until_ms, string.format('%d', now + window), EFFECT.ended, result)
    call('PEXPIRE', key, window)
  end
  wake(by, fields)
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[2]) do
  local at = i * 7 - 4
  replies[i] = word_of(conclude, ARGV[at], ARGV[at + 1], ARGV[at + 2], num(ARGV[at + 3]), unpack(ARGV, at + 4, at + 6))
end
return replies
