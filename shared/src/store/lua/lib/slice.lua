-- Slices: how calls get out, come back, and how a turn waits in between.

-- Puts a slice on its queue and answers its entry id, which is the turn's new fence (rule 4).
-- `crashes` and `attempt` are 0 at first; `calls` are the blobs from position `first` on. A slice that a holder has
-- died with goes to the suspects.
local function dispatch(queue, tt, meta, first, crashes, attempt, calls)
  if crashes > 0 then queue = suspect_queue(queue) end
  local entry, n = { 't', tt, 'm', meta }, 4
  if first > 0 then entry[n + 1], entry[n + 2], n = 'p', first, n + 2 end
  if crashes > 0 then entry[n + 1], entry[n + 2], n = 'x', crashes, n + 2 end
  if attempt > 0 then entry[n + 1], entry[n + 2], n = 'a', attempt, n + 2 end
  -- What an external runtime reads is the task itself.
  local name = string.sub(queue, 1, 9) == 'external:' and 'task' or 'c'
  for i = 1, #calls do
    entry[n + 1], entry[n + 2] = name, calls[i]
    n = n + 2
  end
  return call('XADD', P .. queue, '*', unpack(entry))
end

-- The body of an entry of a queue: meta, first position, calls, crashes, attempt; nil where it is gone.
local function body_of_entry(queue, entry)
  local found = call('XRANGE', P .. queue, entry, entry)
  if not found[1] then return nil end
  local f, body = found[1][2], { calls = {}, first = 0, crashes = 0, attempt = 0 }
  for i = 1, #f, 2 do
    local k, v = f[i], f[i + 1]
    if k == 'c' or k == 'task' then body.calls[#body.calls + 1] = v
    elseif k == 't' then body.tt = v
    elseif k == 'm' then body.meta = v
    elseif k == 'p' then body.first = num(v)
    elseif k == 'x' then body.crashes = num(v)
    elseif k == 'a' then body.attempt = num(v)
    end
  end
  return body
end

-- The calls [first, upto) of a turn from its record; nil where they were never stored there.
local function body_of_record(key, first, upto)
  local fields = { 'm' }
  for i = first, upto - 1 do fields[#fields + 1] = 'c' .. i end
  local values = call('HMGET', key, unpack(fields))
  if not values[1] then return nil end
  local body = { meta = values[1], first = first, calls = {} }
  for i = 2, #values do body.calls[i - 1] = values[i] end
  return body
end

-- Keeps a slice's body in the record, so that it outlives its entry.
local function keep_body(key, body)
  local fields = { 'm', body.meta }
  for i = 1, #body.calls do
    fields[#fields + 1] = 'c' .. (body.first + i - 1)
    fields[#fields + 1] = body.calls[i]
  end
  call('HSET', key, unpack(fields))
end

-- What is left of a body when the results before `done` are in.
local function rest_of(body, done)
  local skip = done - body.first
  if skip <= 0 then return body end
  local calls = {}
  for i = skip + 1, #body.calls do calls[#calls + 1] = body.calls[i] end
  -- The tries counted the call that was first; the one that is first now has none behind it.
  body.calls, body.first, body.attempt = calls, done, 0
  return body
end

-- The budgets of one agent (`tenant:agent`): calls used in the tick, its end, calls used in the day, its end, and
-- when the tick began.
local function budget_of(name)
  local text = call('HGET', P .. 'budgets', name)
  local a = { tu = 0, te = 0, du = 0, de = 0, tb = 0 }
  if text then a.tu, a.te, a.du, a.de, a.tb = struct.unpack('<ddddd', text) end
  return a
end

-- Puts a turn with calls left on its agent's lane, in admission order, and arms the lane's timer (rule 3).
local function put_on_lane(tenant, agent, turn, seq, due)
  call('ZADD', lane_key(tenant, agent), seq, turn)
  call('ZADD', TIMERS, 'LT', due, 'l:' .. tenant .. ':' .. agent)
end

-- Gives the calls [done, upto) of a turn that is not out to the caller to end: the caller renders their results
-- and settles them under the new fence. If it dies, the timer gives the ending to somebody else.
-- reply {tenant:turn, fence, reason, done, upto, info, begun positions, before, meta, calls…}; begun positions: by the
-- record or '', and behind commas those that are marked; before: how often the first call was tried, or LOST where a
-- worker was lost that may have run it
-- Which calls of [from, upto) are marked as begun by somebody, of a turn with this meta: each behind a comma. Whether
-- the marks are of this very content, the digest in the meta says.
local function marked(tt, from, upto, meta)
  local digest = call('HGET', marks_key(tt), 'd')
  if not digest or upto <= from or (meta and not string.find(meta, '"dg":"' .. digest .. '"', 1, true)) then return '' end
  local fields, found = {}, ''
  for i = from, upto - 1 do fields[#fields + 1] = 'b' .. i end
  local marks = call('HMGET', marks_key(tt), unpack(fields))
  for i = 1, #fields do
    if marks[i] then found = found .. ',' .. (from + i - 1) end
  end
  return found
end

local function lease_ending(tt, key, rec, reason, upto, info, now, lease, body)
  local fence = 's:' .. call('HINCRBY', META, 'endings', 1)
  call('HSET', key, 'f', fence, 'er', reason, 'eu', upto, 'ei', info, 'hx', '1')
  call('ZADD', TIMERS, now + lease, 't:' .. tt)
  body = body or body_of_record(key, rec.dn, upto)
  -- A call that somebody who is gone had begun may have taken effect: its result must not deny it.
  local m = call('HMGET', key, 'b', 'at', 'ap', 'cr')
  local begun = string.match(m[1] or '', '^%d+')
  if begun and num(begun) < rec.dn then begun = nil end
  begun = begun or ''
  if now < marks_ms then begun = begun .. marked(tt, rec.dn, upto, body and body.meta) end
  local before = m[4] and 'LOST' or num(m[3] or -1) == rec.dn and m[2] or '0'
  local reply = { tt, fence, reason, tostring(rec.dn), tostring(upto), tostring(info), begun, before,
    body and body.meta or '' }
  if body then
    for i = 1, math.min(#body.calls, upto - rec.dn) do reply[#reply + 1] = body.calls[i] end
  end
  return reply
end

local function split(tt)
  return string.match(tt, '^([^:]+):(.+)$')
end
