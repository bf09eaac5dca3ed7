-- Budgets of one agent within a batch. Rule 1: a counter knows its end and resets only when that has come;
-- a new tick length or cap applies to the next window.
local agents = {}
local BUDGETS = P .. 'budgets'
-- More calls than any cap allows.
local USED_UP = 1000000000

-- Whether a number can be one of a budget: none is negative, or later than any window's end.
local function is_sane(value, now) return value >= 0 and value < now + 400 * 86400000 end

-- An agent's budgets, unpacked when a turn first needs them. What a hand has changed into something else counts as
-- used up until the day ends, for a window must not open twice; people are told.
local function agent_of(name, now)
  local a = agents[name]
  if a.text then
    local text = a.text
    a.text = nil
    if #text == 40 then a.tu, a.te, a.du, a.de, a.tb = struct.unpack('<ddddd', text) end
    if #text ~= 40 or not (is_sane(a.tu, now) and is_sane(a.te, now) and is_sane(a.du, now) and is_sane(a.de, now)) then
      a.lost = true
    end
  end
  return a
end

-- Reads the budgets of a batch's agents (`tenant:agent`, each once) in few commands, and whose lanes are not empty.
-- All budgets of a shard are one hash, so that a batch costs two commands rather than two an agent.
local function load_agents(names)
  for from = 1, #names, 500 do
    local upto = math.min(from + 499, #names)
    local found = call('HMGET', BUDGETS, unpack(names, from, upto))
    local lanes = {}
    for i = from, upto do
      agents[names[i]] = { tu = 0, te = 0, du = 0, de = 0, tb = 0, text = found[i - from + 1] or nil }
      lanes[#lanes + 1] = P .. 'lane:' .. names[i]
    end
    -- Mostly none waits, and one command says so for all.
    if call('EXISTS', unpack(lanes)) > 0 then
      for i = from, upto do agents[names[i]].waiting = call('EXISTS', P .. 'lane:' .. names[i]) == 1 end
    end
  end
end

-- Opens the windows that have ended. Windows of agents are staggered, so that they do not all open at once.
local function roll(a, t, policy, stagger, now)
  a.rolled = true
  if a.lost then
    a.lost, a.told, a.te = nil, true, now - (now - stagger) % policy.tick + policy.tick
    a.tu, a.tb, a.du, a.de = USED_UP, a.te - policy.tick, USED_UP, policy.day_end
  end
  if now >= a.te then
    a.tu, a.te = 0, now - (now - stagger) % policy.tick + policy.tick
    a.tb = a.te - policy.tick
  end
  if now >= a.de then a.du, a.de = 0, policy.day_end end
  if now >= t.de then t.du, t.de = 0, policy.day_end end
end

-- How many calls the day still allows, and when more are allowed.
local function day_left(a, t, policy)
  local left, resets = policy.day_cap - a.du, a.de
  if policy.tenant_cap >= 0 and policy.tenant_cap - t.du < left then
    left, resets = policy.tenant_cap - t.du, t.de
  end
  return math.max(left, 0), resets
end

-- How many calls the tick still allows. Rule 8: none in a window that began before Redis restarted, for its
-- last debits may be lost. When it began is kept: the policy's tick may be another by now.
local function tick_left(a, policy, epoch_ms)
  if a.tb < epoch_ms then return 0 end
  return math.max(policy.tick_cap - a.tu, 0)
end

-- Debits every budget of the chain at once.
local function debit(a, t, k)
  a.tu, a.du, t.du = a.tu + k, a.du + k, t.du + k
end

local function save_agents()
  local fields = {}
  for name, a in pairs(agents) do
    if a.told then put_aside('budgets', name, 'its budgets could not be read: they count as used up until the day ends') end
    if a.rolled then
      local n = #fields
      fields[n + 1], fields[n + 2] = name, struct.pack('<ddddd', a.tu, a.te, a.du, a.de, a.tb)
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
      reject = ARGV[at + 6] == 'reject',
    }
    at = at + 7
  end
  return policies, at
end

-- Why nothing may be decided by what the caller holds, or nil. Rules 1 and 17: an older policy must not reopen a window
-- that a newer one began, and a tenant's cap that was set at run time counts from that moment on.
-- `given`: '<policy generation>:<generation of the tenants set at run time>'
local function outdated(policy_gen, tenants_gen, given)
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

-- What the log of a turn says of one admission: when, how many, and the counters that decided.
local function admission_note(now_text, k, a, policy)
  return string.format('A%s,%d,%d,%d,%d,%d,%d', now_text, k, a.tu, policy.tick_cap, a.te, a.du, policy.day_cap)
end
