#!lua flags=allow-oom
-- begin: fences the start of a call, so that a side effect is never begun twice (rule 7), marks that a
-- suspect slice was really started (rule 12), or only asks what is known of a call that will not run.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 lease ms · 3 count, then per call: tenant:turn · fence · position · nonce, '' (mark only)
--       or '?' (ask only: nothing is written) · digest of the turn's content · the run_id of Redis that the caller has told of its begins, or '';
--       at last, what Redis called itself when the caller connected, or ''
-- reply per call: OK · DONE (its result is there) · UNKNOWN (begun by somebody who is gone) ·
--       {KEPT, result, message, audit} (it was carried out, and Redis lost that) · STALE · CANCELLED ·
--       EXPIRED · HOLD (Redis restarted less than a lease ago, or
--       is another than the caller knows: it asserts first)
-- effect HSET turn begun (position:nonce), started (fence)
local now, _, _, meta = clock(ARGV[1], 'run_id', 'epoch_ms', 'ran_ms')
local began, run_id = epoch(now, ARGV[#ARGV], meta)
local hold = began + num(ARGV[2])

local function begin(tt, fence, position, nonce, digest, knows)
  local key = turn_key(tt)
  local in_force, done, begun, cancelled, deadline = unpack(call('HMGET', key, TURN.fence, TURN.done, TURN.begun,
    TURN.cancelled, TURN.deadline_ms))
  if in_force ~= fence then return 'STALE' end
  if position < num(done or 0) then return 'DONE' end
  local mine = position .. ':' .. nonce
  if nonce ~= '' and begun == mine then
    -- Written again: whoever waits until it would survive waits for what this connection has written.
    call('HSET', key, TURN.begun, mine)
    return 'OK'
  end
  -- Rule 8: Redis lost that it was begun, and somebody knew.
  local early = nonce ~= '' and (now < hold or knows ~= '' and knows ~= run_id)
  local mark = nonce ~= '' and now < marks_ms and mark_of(tt, position, digest)
  if mark and mark.nonce ~= nonce then
    -- Who says what it began says next what came of it.
    return mark.result and { 'KEPT', mark.result, mark.message, mark.audit } or early and 'HOLD' or 'UNKNOWN'
  end
  -- Another's begin of this very call: what it did cannot be known. Right after a restart somebody may still say it.
  -- So it is where the other came further: this call lies behind it, and was something else then that needs no begin.
  local other = nonce ~= '' and begun and num(string.match(begun, '^%d+'))
  if other and (other == position or nonce ~= '?' and other > position) then return early and 'HOLD' or 'UNKNOWN' end
  -- Before anything else is said: it would say that the call did not run.
  if early then return 'HOLD' end
  if cancelled then return 'CANCELLED' end
  if num(deadline) <= now then return 'EXPIRED' end
  if nonce == '?' then return 'OK' end
  if nonce == '' then
    call('HSET', key, TURN.started, fence)
  else
    call('HSET', key, TURN.started, fence, TURN.begun, mine)
  end
  return 'OK'
end

local replies = {}
for i = 1, num(ARGV[3]) do
  local at = i * 6 - 2
  replies[i] = word_of(begin, ARGV[at], ARGV[at + 1], num(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
end
return replies
