-- Cancels that came before what they cancel (rule 22): `cancel` keeps a mark, whoever admits takes it.

-- Whether any of these has a mark. `latest_ms` (meta's `early_ms`) is when the last mark of the shard goes: mostly there
-- is none, and nothing is asked.
local function any_early(tts, latest_ms, now)
  if #tts == 0 or num(latest_ms or 0) <= now then return false end
  local marks = {}
  for i = 1, #tts do marks[i] = early_key(tts[i]) end
  return call('EXISTS', unpack(marks)) > 0
end

-- Why a turn or task was cancelled before it came, or nil.
local function why_early(tt) return call('GET', early_key(tt)) or nil end

local function take_early(tt)
  local tenant, turn = split(tt)
  call('DEL', early_key(tt))
  call('ZREM', early_key(tenant), turn)
end
