#!lua flags=allow-oom
-- assert: a worker says which calls it began and what came of them, where Redis may have lost that (rule 8). What the
-- turn's record does not know is kept as a mark, which every later begin of the call finds, whatever has become of the
-- turn: back on its inbound stream, on a lane, out under another fence.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 '1' where the worker knows that Redis is another than it was · 3 count, then per call:
--       tenant:turn · position · digest · nonce · ms that the mark is kept · BEGUN (it may run still) or ENDED (its result
--       is known) or UNDONE (it certainly did nothing) · result JSON · message JSON · audit JSON (the last three are ''
--       but for ENDED)
-- reply per call: KNOWN (the record has its result) · MARKED · LATE (somebody else has begun it) · UNMARKED
-- effect HSET ran:<tenant:turn> with a TTL, HSET meta ran_ms; HSET meta epoch_ms where nothing was left of the epochs
local now = clock(ARGV[1])
local began = epoch(now)
-- All was lost, so this looks like the first epoch. It is not: nobody begins for a lease.
if ARGV[2] == '1' and began == 0 then call('HSET', META, 'epoch_ms', now) end
local until_ms = marks_ms

local function assert_call(tt, position, digest, nonce, kept, word, result, message, audit)
  local marks = marks_key(tt)
  if word == 'UNDONE' then
    if mark_of(tt, position, digest) then call('HDEL', marks, MARK.nonce .. position) end
    return 'UNMARKED'
  end
  local calls, done, begun = unpack(call('HMGET', turn_key(tt), TURN.calls, TURN.done, TURN.begun))
  if calls and num(done or 0) > position then return 'KNOWN' end
  if not calls and call('EXISTS', done_key(tt)) == 1 then return 'KNOWN' end
  if begun and num(string.match(begun, '^%d+')) == position and begun ~= position .. ':' .. nonce then return 'LATE' end
  -- The id was given to other calls since: what is known of theirs is nothing to these.
  local other = call('HGET', marks, MARK.digest)
  if other and other ~= digest then call('DEL', marks) end
  call('HSET', marks, MARK.digest, digest, MARK.nonce .. position, nonce)
  if word == 'ENDED' then
    call('HSET', marks, MARK.result .. position, result, MARK.message .. position, message, MARK.audit .. position, audit)
  end
  call('PEXPIRE', marks, math.max(kept, call('PTTL', marks)))
  until_ms = math.max(until_ms, now + kept)
  return 'MARKED'
end

local replies = {}
for i = 1, num(ARGV[3]) do
  local at = i * 9 - 5
  replies[i] = assert_call(ARGV[at], num(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], num(ARGV[at + 4]), ARGV[at + 5],
    ARGV[at + 6], ARGV[at + 7], ARGV[at + 8])
end
if until_ms > marks_ms then call('HSET', META, 'ran_ms', string.format('%d', until_ms)) end
return replies
