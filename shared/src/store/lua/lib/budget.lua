-- Budgets of one agent within a batch. Rule 1: a counter knows its end and resets only when that has come;
-- a new tick length or cap applies to the next window.
local agents = {}

local function agent_of(tenant, agent)
  local key = agent_key(tenant, agent)
  local a = agents[key]
  if not a then
    local m = call('HMGET', key, 'tu', 'te', 'du', 'de', 'tb')
    a = { tu = num(m[1] or 0), te = num(m[2] or 0), du = num(m[3] or 0), de = num(m[4] or 0),
      tb = num(m[5] or 0) }
    a.waiting = call('EXISTS', lane_key(tenant, agent)) == 1
    agents[key] = a
  end
  return a
end

-- Opens the windows that have ended. Windows of agents are staggered, so that they do not all open at once.
local function roll(a, t, policy, stagger, now)
  a.rolled = true
  if now >= a.te then
    a.tu, a.te = 0, now - (now - stagger) % policy.tick + policy.tick
    a.tb = a.te - policy.tick
  end
  if now >= a.de then a.du, a.de, a.new_day = 0, policy.day_end, true end
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

local function save_agents(now)
  for key, a in pairs(agents) do
    if a.rolled then call('HSET', key, 'tu', a.tu, 'te', a.te, 'du', a.du, 'de', a.de, 'tb', a.tb) end
    -- The counters mean nothing once the day is over: the key may go a day later.
    if a.new_day then call('PEXPIRE', key, a.de - now + 86400000) end
  end
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

-- Whether a policy's day bounds hold `now`; the caller computes them anew if not.
local function day_is_stale(policies, now)
  for i = 1, #policies do
    if now < policies[i].day_start or now >= policies[i].day_end then return true end
  end
  return false
end

-- What the log of a turn says of one admission: when, how many, and the counters that decided.
local function admission_note(now, k, a, policy)
  return 'A' .. now .. ',' .. k .. ',' .. a.tu .. ',' .. policy.tick_cap .. ',' .. a.te .. ',' .. a.du .. ',' ..
    policy.day_cap
end
