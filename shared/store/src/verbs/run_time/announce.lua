#!lua flags=allow-oom
-- announce: a scheduler says which policy it decides by. One that was never seen here becomes the one in force; an
-- older one comes back only when no living scheduler decides by the one in force any more (docs/adr/0007).
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 digest of the policy · 3 number of shards · 4 the scheduler, or '' ·
--       5 '1': take an older policy back although a scheduler with the one in force only fell silent
-- reply {OK, generation} · {OLDER, generation in force, 'held' or 'silent'} · {SHARDS, the stored number}
-- effect HSET meta, policies
local now = clock(ARGV[1])
local digest, scheduler = ARGV[2], ARGV[4]
local POLICIES, BEATS, KNOWN_MAX = P .. 'policies', P .. 'beats', 64
local gen, in_force, shards = unpack(call('HMGET', META, 'policy_gen', 'policy', 'shards'))
-- Rule 10: a tenant's shard depends on the number of shards, so all must agree on it.
if shards and shards ~= ARGV[3] then return { 'SHARDS', shards } end

-- What is known: `g:<digest>` is the generation that a policy had last, `h:<scheduler>` the policy it decides by.
local known, held, silent, count, oldest = nil, false, false, 0, nil
local all = call('HGETALL', POLICIES)
for i = 1, #all, 2 do
  local kind, name, value = string.sub(all[i], 1, 2), string.sub(all[i], 3), all[i + 1]
  if kind == 'g:' then
    count = count + 1
    if name == digest then known = true end
    if name ~= in_force and (not oldest or num(value) < oldest.gen) then oldest = { gen = num(value), field = all[i] } end
  elseif name ~= scheduler then
    local lease = call('HGET', BEATS, name)
    if not lease then
      -- It has left, or has been silent for a day.
      call('HDEL', POLICIES, all[i])
    elseif value == in_force then
      if num(lease) > now then held = true else silent = true end
    end
  end
end

local function decides_by_it()
  if scheduler ~= '' then call('HSET', POLICIES, 'h:' .. scheduler, digest) end
end

if digest == in_force then
  call('HSET', POLICIES, 'g:' .. digest, gen)
  decides_by_it()
  return { 'OK', gen }
end
if known and (held or (silent and ARGV[5] ~= '1')) then
  if scheduler ~= '' then call('HDEL', POLICIES, 'h:' .. scheduler) end
  return { 'OLDER', gen, held and 'held' or 'silent' }
end
if in_force then call('HSET', POLICIES, 'g:' .. in_force, gen) end
if not known and count >= KNOWN_MAX then call('HDEL', POLICIES, oldest.field) end
call('HSET', META, 'policy', digest, 'shards', ARGV[3])
gen = tostring(call('HINCRBY', META, 'policy_gen', 1))
call('HSET', POLICIES, 'g:' .. digest, gen)
decides_by_it()
return { 'OK', gen }
