-- Budgets of one agent within a batch. Rule 1: a counter knows its end and resets only when that has come;
-- a new tick length or cap applies to the next window.
local agents = {}
local BUDGETS = P .. 'budgets'
-- More calls than any cap allows.
local USED_UP = 1000000000

local unpack_numbers, pack_numbers = struct.unpack, struct.pack

-- No number of a budget is negative, or so far ahead: no window ends so late.
local LATEST_MS = 400 * 86400000

-- An agent's budgets, unpacked when a turn first needs them. What a hand has changed into something else counts as
-- used up until the day ends, for a window must not open twice; people are told.
local function agent_of(name, now)
  local a = agents[name]
  if a.text then
    local text, most, tick, tick_end, day, day_end = a.text, now + LATEST_MS, nil, nil, nil, nil
    a.text = nil
    if #text == 40 then
      tick, tick_end, day, day_end, a.tick_begin = unpack_numbers('<ddddd', text)
      a.tick_used, a.tick_end, a.day_used, a.day_end = tick, tick_end, day, day_end
    end
    a.lost = #text ~= 40 or not (tick >= 0 and tick < most and tick_end >= 0 and tick_end < most and day >= 0 and day < most
      and day_end >= 0 and day_end < most and a.tick_begin >= 0 and a.tick_begin < most)
  end
  return a
end

-- Reads the budgets of a batch's agents (`tenant:agent`, each once) in few commands, and whose lanes are not empty.
-- All budgets of a shard are one hash, so that a batch costs two commands rather than two an agent. Returns whether one of
-- the keys `others` exists, which mostly do not either.
local function load_agents(names, others)
  local any = false
  for from = 1, #names, 500 do
    local upto = math.min(from + 499, #names)
    local found = call('HMGET', BUDGETS, unpack(names, from, upto))
    local lanes = {}
    for i = from, upto do
      agents[names[i]] = {
        tick_used = 0, tick_end = 0, day_used = 0, day_end = 0, tick_begin = 0, text = found[i - from + 1] or nil,
      }
      lanes[#lanes + 1] = P .. 'lane:' .. names[i]
    end
    for i = 1, others and from == 1 and #others or 0 do lanes[#lanes + 1] = others[i] end
    -- Mostly none waits, and one command says so for all.
    if call('EXISTS', unpack(lanes)) > 0 then
      for i = from, upto do agents[names[i]].waiting = call('EXISTS', P .. 'lane:' .. names[i]) == 1 end
      any = any or others and from == 1 and call('EXISTS', unpack(others)) > 0
    end
  end
  return any
end

-- Opens the windows that have ended. Windows of agents are staggered, so that they do not all open at once.
local function roll(a, t, policy, stagger, now)
  a.rolled, t.rolled = true, true
  if t.lost then t.lost, t.told, t.day_used, t.day_end = nil, true, USED_UP, policy.day_end end
  if a.lost then
    a.lost, a.told, a.tick_end = nil, true, now - (now - stagger) % policy.tick + policy.tick
    a.tick_used, a.tick_begin, a.day_used, a.day_end = USED_UP, a.tick_end - policy.tick, USED_UP, policy.day_end
  end
  if now >= a.tick_end then
    a.tick_used, a.tick_end = 0, window_end(now, stagger, policy.tick, a.tick_end)
    a.tick_begin = math.min(now, a.tick_end - policy.tick)
  end
  if now >= a.day_end then
    a.day_used, a.day_end = used_in_day(a.day_used, a.day_end, policy.day_start, policy.day_end), policy.day_end
  end
  if now >= t.day_end then
    t.day_used, t.day_end = used_in_day(t.day_used, t.day_end, policy.day_start, policy.day_end), policy.day_end
  end
end

-- How many calls the day still allows, and when more are allowed.
local function day_left(a, t, policy)
  local left, resets = policy.day_cap - a.day_used, a.day_end
  if policy.tenant_cap >= 0 and policy.tenant_cap - t.day_used < left then
    left, resets = policy.tenant_cap - t.day_used, t.day_end
  end
  return left > 0 and left or 0, resets
end

-- How many calls the tick still allows. Rule 8: none in a window that began before Redis restarted, for its
-- last debits may be lost. When it began is kept: the policy's tick may be another by now.
local function tick_left(a, policy, epoch_ms)
  if a.tick_begin < epoch_ms then return 0 end
  local left = policy.tick_cap - a.tick_used
  return left > 0 and left or 0
end

-- Debits every budget of the chain at once.
local function debit(a, t, k)
  a.tick_used, a.day_used, t.day_used = a.tick_used + k, a.day_used + k, t.day_used + k
end

local function save_agents()
  local fields = {}
  for name, t in pairs(tenants) do
    if t.told then put_aside('tenant', name, 'its day could not be read: it counts as used up until it ends') end
  end
  for name, a in pairs(agents) do
    if a.told then put_aside('budgets', name, 'its budgets could not be read: they count as used up until the day ends') end
    if a.rolled then
      local n = #fields
      fields[n + 1], fields[n + 2] = name, pack_numbers('<ddddd', a.tick_used, a.tick_end, a.day_used, a.day_end, a.tick_begin)
      if n >= 900 then
        call('HSET', BUDGETS, unpack(fields))
        fields = {}
      end
    end
  end
  if #fields > 0 then call('HSET', BUDGETS, unpack(fields)) end
end

-- Reads `count` policies from ARGV[at] on; answers them and the next index.
local function read_policies(at, count)
  local policies = {}
  for i = 1, count do
    policies[i] = {
      tick = num(ARGV[at]), tick_cap = num(ARGV[at + 1]), day_cap = num(ARGV[at + 2]),
      day_start = num(ARGV[at + 3]), day_end = num(ARGV[at + 4]), tenant_cap = num(ARGV[at + 5]),
      reject = ARGV[at + 6] == 'reject', tick_text = ARGV[at + 1], day_text = ARGV[at + 2],
    }
    at = at + 7
  end
  return policies, at
end

-- Why nothing may be decided by what the caller holds, or nil. Rules 1 and 17: an older policy must not reopen a window
-- that a newer one began, and a tenant's cap that was set at run time counts from that moment on.
-- `given`: '<policy generation>:<generation of the tenants set at run time>'
local function outdated(policy_gen, tenants_gen, given)
  if given == (policy_gen or '0') .. ':' .. (tenants_gen or '0') then return nil end
  local policy, tenants = string.match(given, '^(%d+):(%d+)$')
  if num(policy_gen or 0) > num(policy) then return 'POLICY_STALE' end
  if num(tenants_gen or 0) > num(tenants) then return 'TENANTS_STALE' end
end

-- Whether a policy's day bounds hold `now`; the caller computes them anew if not.
local function day_is_stale(policies, now)
  for i = 1, #policies do
    if now < policies[i].day_start or now >= policies[i].day_end then return true end
  end
  return false
end

-- Numbers as text: those of a batch are mostly few.
local texts = {}
local function text_of(n)
  local text = texts[n]
  if not text then
    text = string.format('%d', n)
    texts[n] = text
  end
  return text
end

-- What the log of a turn says of one admission: when, how many, and the counters that decided.
local function admission_note(now_text, k, a, policy)
  local tick, ends, day = a.tick_used, a.tick_end, a.day_used
  return 'A' .. now_text .. ',' .. (texts[k] or text_of(k)) .. ',' .. (texts[tick] or text_of(tick)) .. ',' .. policy.tick_text .. ','
    .. (texts[ends] or text_of(ends)) .. ',' .. (texts[day] or text_of(day)) .. ',' .. policy.day_text
end

-- What the log says behind an admission of a turn that runs under a task: what of the task's calls is used with these, and
-- how many it was granted.
local function task_note(used, max) return string.format(';T%.0f,%.0f', used, max) end
