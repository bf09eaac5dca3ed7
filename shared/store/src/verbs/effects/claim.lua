#!lua flags=allow-oom
-- claim: a call that has an effect key claims it before it begins. What came of an equal call before it answers it, and
-- one that runs is waited for.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 lease ms · 3 count, then per call: tenant:turn · fence · position · digest of the turn's
--       content · tenant:tool:hash of the effect · window ms · a claim that is known to have come to nothing, or '' ·
--       the run_id of Redis that the caller has told of its claims, or ''
-- reply per call: CLAIMED · {ENDED, claim, result} · {WAITS, turn} · {GONE, claim, result or ''} (its call is over, and
--       the ledger was not told) · BEGUN (this call was begun, and another has the claim: `begin` says what is known) ·
--       STALE · HOLD (Redis restarted less than a lease ago, or is another than the caller knows, and may have lost a
--       claim)
-- effect HSET effect (by, until_ms, who waits), with a TTL; HSET turn (has_history, fresh)
local now = clock(ARGV[1])
local began, run_id = epoch(now)
local hold = began + num(ARGV[2])

-- A claim says whose it is: <turn>/<position>/<digest of the turn's content>.
local function parts_of(by) return string.match(by, '^(.+)/(%d+)/(%x*)$') end

-- The record of the call that has the claim, if its turn is under way still; and whether that is before its end.
local function look(tenant, turn, position, digest)
  local key = turn_key(tenant .. ':' .. turn)
  local found = redis.pcall('HMGET', key, TURN.calls, TURN.done, TURN.meta)
  -- The id may have been given to other calls since.
  if found.err or not found[1] or found[3] and not string.find(found[3], '"dg":"' .. digest .. '"', 1, true) then return end
  return key, num(found[2] or 0) <= num(position)
end

local function wait_for(key, tt, turn)
  -- Whoever finds no room looks again by itself.
  if call('HLEN', key) < 64 then call('HSET', key, EFFECT.waiter .. tt, '') end
  return { 'WAITS', turn }
end

-- Whether the claim of a call that came to nothing is still that call's, and the call has not come again.
local function is_void(key, tenant, by)
  if call('HEXISTS', key, EFFECT.ended) == 1 then return false end
  local _, is_live = look(tenant, parts_of(by))
  return not is_live
end

-- Another call has it.
local function others(key, tt, position, digest, by, begun)
  -- What somebody who is gone did of this very call comes before anybody else's end.
  local mine_began = begun and num(string.match(begun, '^%d+')) == position
  if mine_began or now < marks_ms and mark_of(tt, position, digest) then return 'BEGUN' end
  local ended = call('HGET', key, EFFECT.ended)
  if ended then return { 'ENDED', by, ended } end
  local turn, at, of = parts_of(by)
  local record, is_live = look(split(tt), turn, at, of)
  if is_live then return wait_for(key, tt, turn) end
  return { 'GONE', by, record and call('HGET', record, TURN.result .. at) or '' }
end

-- What is left of the turn when it has ended has to say that it was this one.
local function leave_trace(tt) call('HSET', turn_key(tt), TURN.has_history, '1', TURN.fresh, '') end

local function claim(tt, fence, position, digest, effect, window, nothing, knows)
  local in_force, done, begun, deadline = unpack(call('HMGET', turn_key(tt), TURN.fence, TURN.done, TURN.begun,
    TURN.deadline_ms))
  if in_force ~= fence or position < num(done or 0) then return 'STALE' end
  local tenant, turn = split(tt)
  local key, mine = effect_key(effect), turn .. '/' .. position .. '/' .. digest
  local by, until_ms = unpack(call('HMGET', key, EFFECT.by, EFFECT.until_ms))
  -- What a hand has left there counts for nothing, and so does what is over.
  if by and (not parts_of(by) or (num(until_ms) or 0) <= now) then by = nil end
  if by == mine then
    local ended = call('HGET', key, EFFECT.ended)
    if ended then return { 'ENDED', by, ended } end
    -- Redis may have lost that when it lost the claim, which has been said again since.
    leave_trace(tt)
    return 'CLAIMED'
  end
  if by and not (by == nothing and is_void(key, tenant, by)) then
    return others(key, tt, position, digest, by, begun)
  end
  -- Rule 8: somebody may know of a claim that Redis lost, and says it within this time.
  if now < hold or knows ~= '' and knows ~= run_id then return 'HOLD' end
  -- It lives for as long as its turn may, and after that for as long as what came of it is asked for.
  local lives = math.max(num(deadline) - now, 0) + window
  call('DEL', key)
  call('HSET', key, EFFECT.by, mine, EFFECT.until_ms, string.format('%d', now + lives))
  call('PEXPIRE', key, string.format('%d', lives))
  leave_trace(tt)
  return 'CLAIMED'
end

local replies = {}
for i = 1, num(ARGV[3]) do
  local at = i * 8 - 4
  replies[i] = word_of(claim, ARGV[at], ARGV[at + 1], num(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4], num(ARGV[at + 5]),
    ARGV[at + 6], ARGV[at + 7])
end
return replies
