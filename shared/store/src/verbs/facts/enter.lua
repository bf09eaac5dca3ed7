#!lua flags=allow-oom
-- enter: a call that goes by the facts of its session, or may change them, enters it before it begins. What it requires has
-- to be so, and what it forbids may not. If a call that has entered may still change that, it waits for that call, whichever
-- turn came first: so no two calls begin by the same premise that one of them changes. A missing fact is also waited for if an
-- earlier turn is expected to set it.
-- Deadlocks: a call that has entered never waits for facts, so a circle has to lead through work that a call waits for (a task, an
-- inner call) or through a place of a limit. Work of the waiting call's own callers is not counted: it ends before they do.
-- Any other circle ends with the call that would close it: it does not wait, and is denied (state 'w') or decided by what is known.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 lease ms · 3 facts of a session at most · 4 count, then per call: tenant:turn · fence · position ·
--       digest of the turn's content · tenant:session · the run_id of Redis that the caller has told of its facts, or '' ·
--       when its turn was submitted, ms by Redis' clock, or 0 · '1' where it only looks whether it might begin · conditions ·
--       changes, then per condition: R (required) or F (forbidden), in small letters in shadow · fact; per change: S (sets) or
--       C (clears) · fact · ms that it is kept
-- reply per call: {ENTERED, when that was decided, ms, or '' where it was let in before; shadow condition, …} (their numbers,
--       from 1) · {UNMET, when, number of the condition, state: '-' never set, 'y', 'm' perhaps, 'n' cleared, 'x' over, 'w' a call
--       may change it that waits for this one; since ms, call, until ms} · {WAITS, turn} · BEGUN (this call was begun before: `begin` says what is known of it) · FULL (its
--       session has no room for what it would set) · STALE · HOLD (Redis restarted less than a lease ago, or is another than
--       the caller knows, and may have lost facts)
-- effect HSET entered (the call, or that its turn waits), turn (entered), but where it only looks; HSET or HDEL turn (awaits); a call
--        that is gone: HSET facts (perhaps)
local now = clock(ARGV[1])
local began, run_id = epoch(now)
local hold = began + num(ARGV[2])
local facts_max = num(ARGV[3])

-- Whether a call is under way still, or may come yet (`expected` says since when it is waited for).
local function is_live(tenant, by, expected)
  local turn, position = string.match(by, '^(.+)/(%d+)$')
  if not turn then return false end
  local found = redis.pcall('HMGET', turn_key(tenant .. ':' .. turn), TURN.calls, TURN.done)
  if found.err then return false end
  -- It is admitted in a moment, or was refused.
  if not found[1] then return expected and num(expected) + 10000 > now end
  return num(found[2] or 0) <= num(position)
end

-- The turn of a call and all that it is a part of: the calls that made it, and the tasks that it runs under. Also the places of
-- limits that these hold; the call's own turn gives its places back while it waits.
local function callers_of(s)
  if s.callers then return s.callers, s.held end
  s.callers, s.held = {}, {}
  local turn = s.turn
  for _ = 1, 64 do
    s.callers[turn] = true
    local found = redis.pcall('HMGET', turn_key(s.tenant .. ':' .. turn), TURN.task, TURN.parent, TURN.holds)
    if found.err then break end
    for counter in string.gmatch(turn ~= s.turn and found[3] or '', '(%S+) %d+') do s.held[counter] = true end
    turn = string.match(turn, '^(.+)%.%d+%.call%-%d+$') or found[1] or found[2]
    if not turn then break end
  end
  return s.callers, s.held
end

-- Whether the end of a turn depends on this call: 'own' if that turn waits for work that this call is a part of, 'circle' if it
-- waits, perhaps through others, for somebody who waits for this call. Nil if it does not.
local function depends_on_us(s, turn)
  local callers, held = callers_of(s)
  local word = 'own'
  for _ = 1, 64 do
    if callers[turn] then return word end
    local found = redis.pcall('HMGET', turn_key(s.tenant .. ':' .. turn), TURN.awaits, TURN.waited, TURN.done, TURN.fence, TURN.lane)
    if found.err then return nil end
    local awaits, waited, done, fence, lane = unpack(found)
    if not awaits then return not fence and lane and held[lane] and 'circle' or nil end
    if awaits == turn then return nil end
    if waited ~= (done or '0') then word = 'circle' end
    turn = awaits
  end
end

-- A call that is gone: one that had entered may have done what it could.
local function drop(s, i)
  local by, text = s.entered[i], s.entered[i + 1]
  s.entered[i + 1] = ''
  if string.match(text, '^%d+ e') then
    call('HDEL', entered_key(s.session), by)
  else
    leave_unsaid(s.session, by, now)
  end
end

-- The turn of a call that may bring `change` about of a fact, and is to be waited for: any call of another turn that has entered;
-- where a fact is missing, also one that is only expected, of a turn that came before `number`. Answers also whether one was found
-- to be gone, and the call that may do it and waits for this one, if there is one.
local function who_may(s, change, fact, is_missing)
  local circle
  for i = 1, #s.entered, 2 do
    local by, text = s.entered[i], s.entered[i + 1]
    local number, expected = string.match(text, '^(%d+) e?(%d*)')
    if number and (expected == '' or is_missing and num(number) < s.number) and string.sub(by, 1, #s.turn + 1) ~= s.turn .. '/'
      and string.find(text, change .. fact .. ' ', 1, true) then
      if not is_live(s.tenant, by, expected ~= '' and expected) then
        drop(s, i)
        return nil, true
      end
      local turn = string.match(by, '^(.+)/%d+$')
      local depends = depends_on_us(s, turn)
      if not depends then return turn end
      if depends == 'circle' and expected == '' then circle = by end
    end
  end
  return nil, false, circle
end

-- Whether a condition is met, or the turn that has to be waited for; then what is known of the fact.
local function look(s, kind, fact)
  local required = string.upper(kind) == 'R'
  while true do
    local state, since, by, until_ms = fact_of(call('HGET', facts_key(s.session), fact), now)
    local is_so = state == 'y' or not required and state == 'm'
    local turn, gone, circle
    -- In shadow nothing is waited for.
    if kind == 'R' or kind == 'F' then turn, gone, circle = who_may(s, is_so and 'C' or 'S', fact, required and not is_so) end
    if not turn and circle and is_so == required then return false, { 'w', '', circle, '' } end
    if not gone then return turn or is_so == required, { state, since or '', by or '', until_ms or '' } end
  end
end

-- Whether turns that were submitted before this one are not decided about yet (whoever decides one removes its entry): one
-- of them may bring what is missing.
local function is_early(submitted)
  local found = redis.pcall('XRANGE', P .. 'turns', '-', '+', 'COUNT', 1)
  local ms = not found.err and found[1] and num(string.match(found[1][1], '^%d+'))
  -- One that came anew stands behind later ones.
  return ms and (ms <= submitted or submitted > 0 and ms <= num(call('HGET', META, 'anew_ms') or 0))
end

-- Room for the facts that a call sets: what is over or was cleared makes some.
local function has_room(session, changes)
  local key = facts_key(session)
  local fresh = 0
  for i = 1, #changes, 3 do
    if changes[i] == 'S' and call('HEXISTS', key, changes[i + 1]) == 0 then fresh = fresh + 1 end
  end
  if fresh == 0 or call('HLEN', key) + fresh <= facts_max then return true end
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    local state = fact_of(all[i + 1], now)
    if state == 'x' or state == 'n' or state == '-' then call('HDEL', key, all[i]) end
  end
  return call('HLEN', key) + fresh <= facts_max
end

-- Whether there is a place for one more call among those under way; those that are gone make some.
local function has_place(s, position)
  for i = 1, #s.entered, 2 do
    local by, text = s.entered[i], s.entered[i + 1]
    local number, expected = string.match(text, '^(%d+) e?(%d*)')
    if by == s.turn .. '/' .. position then return true end
    if number and not is_live(s.tenant, by, expected ~= '' and expected) then drop(s, i) end
  end
  return call('HLEN', entered_key(s.session)) < 256
end

local function wait_for(s, tt, turn)
  local key = entered_key(s.session)
  -- Whoever finds no room looks again by itself.
  if #s.entered < 256 then call('HSET', key, 'w:' .. tt, turn) end
  -- Said at once, so that of two calls that come to wait for each other the second one sees it.
  call('HSET', turn_key(tt), TURN.awaits, turn)
  return { 'WAITS', turn }
end

local function write(s, tt, position, session, changes, deadline)
  local key, own = entered_key(session), s.turn .. '/' .. position
  if #changes == 0 then return end
  local number = s.number < math.huge and s.number or call('HINCRBY', META, 'entered', 1)
  local text = {}
  for i = 1, #changes, 3 do text[#text + 1] = changes[i] .. changes[i + 1] .. ' ' .. changes[i + 2] end
  call('HSET', key, own, string.format('%d %s', number, table.concat(text, ',')))
  if s.waited then call('HDEL', key, 'w:' .. tt) end
  -- Its end may be told a while after its deadline.
  keep_for(key, deadline - now + 86400000)
  call('HSET', turn_key(tt), TURN.entered, position .. ' ' .. session, TURN.has_history, '1', TURN.fresh, '')
end

local function enter(at)
  local tt, fence, position, digest, session, knows, submitted, looks = unpack(ARGV, at, at + 7)
  local in_force, done, begun, deadline, awaits = unpack(call('HMGET', turn_key(tt), TURN.fence, TURN.done, TURN.begun, TURN.deadline_ms,
    TURN.awaits))
  if in_force ~= fence or num(position) < num(done or 0) then return 'STALE' end
  if awaits then call('HDEL', turn_key(tt), TURN.awaits) end
  -- What somebody who is gone did of this very call comes before anything else that is said of it.
  if begun and string.match(begun, '^%d+') == position or now < marks_ms and mark_of(tt, position, digest) then return 'BEGUN' end
  -- Rule 8: somebody may know of a fact that Redis lost, and says it within this time.
  if now < hold or knows ~= '' and knows ~= run_id then return 'HOLD' end
  local tenant, turn = split(tt)
  local conditions, changes = num(ARGV[at + 8]), {}
  local from = at + 10 + conditions * 2
  for i = from, from + num(ARGV[at + 9]) * 3 - 1 do changes[#changes + 1] = ARGV[i] end
  local entered = call('HGETALL', entered_key(session))
  -- All calls of a turn come with it.
  local s = { tenant = tenant, turn = turn, session = session, entered = entered, number = math.huge }
  local has_begun = false
  for i = 1, #entered, 2 do
    -- It was let in before: it is decided about once, where it begins.
    if entered[i] == turn .. '/' .. position then has_begun = not string.match(entered[i + 1], '^%d+ e') end
    if entered[i] == 'w:' .. tt then s.waited = true end
    if string.sub(entered[i], 1, #turn + 1) == turn .. '/' then s.number = num(string.match(entered[i + 1], '^%d+') or '') or s.number end
  end
  local at_ms = string.format('%d', now)
  local shadow, waits = { 'ENTERED', has_begun and '' or at_ms }, nil
  for i = 1, has_begun and 0 or conditions do
    local kind, fact = ARGV[at + 8 + i * 2], ARGV[at + 9 + i * 2]
    local met, known = look(s, kind, fact)
    if type(met) == 'string' then
      waits = waits or met
    elseif not met then
      if kind == 'R' and known[1] ~= 'w' and is_early(num(submitted)) then return { 'WAITS', turn } end
      if kind == 'R' or kind == 'F' then return { 'UNMET', at_ms, tostring(i), unpack(known) } end
      shadow[#shadow + 1] = tostring(i)
    end
  end
  if waits then return wait_for(s, tt, waits) end
  if not has_room(session, changes) then return 'FULL' end
  if looks == '1' then return shadow end
  -- More calls at once than are kept: it looks again in a while.
  if #entered >= 512 and #changes > 0 and not has_place(s, position) then return { 'WAITS', turn } end
  write(s, tt, position, session, changes, num(deadline))
  return shadow
end

local replies, at = {}, 5
for i = 1, num(ARGV[4]) do
  replies[i] = word_of(enter, at)
  at = at + 10 + num(ARGV[at + 8]) * 2 + num(ARGV[at + 9]) * 3
end
return replies
