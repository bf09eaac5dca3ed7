//! What scripts find as `redis`, and the rules for globals.

/// Given: how a command is called, what makes a table of an uncaught error, more members of `redis`. Answers what runs a
/// script.
pub(super) const PRELUDE: &str = r#"local raw, handler, redis, packs = ...
local error, pcall, xpcall, setmetatable, type, tostring = error, pcall, xpcall, setmetatable, type, tostring
local find, sub = string.find, string.sub

function redis.call(...)
  local reply, failed = raw(...)
  if failed then error(reply, 0) end
  return reply
end

function redis.pcall(...)
  return (raw(...))
end

-- An error's first word is its code; a lone word is none.
function redis.error_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then return { err = 'ERR wrong number or type of arguments' } end
  if sub(text, 1, 1) == '-' then text = sub(text, 2) end
  return { err = find(text, ' ', 1, true) and text or 'ERR ' .. text }
end

function redis.status_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then return { err = 'ERR wrong number or type of arguments' } end
  return { ok = text }
end

-- Redis' own pcall: of an error that is a table, its text.
local function caught(done, problem, ...)
  if not done and type(problem) == 'table' then
    local text = problem.err
    if type(text) == 'string' or type(text) == 'number' then return done, text end
  end
  return done, problem, ...
end

function _G.pcall(...)
  return caught(pcall(...))
end

local function checked(problem, ...)
  if problem then error(problem, 3) end
  return ...
end

struct = { size = packs.size }
function struct.pack(...)
  return checked(packs.pack(...))
end
function struct.unpack(...)
  return checked(packs.unpack(...))
end

function redis.log() end
function redis.setresp() end
function redis.set_repl() end
function redis.breakpoint() return false end
function redis.debug() end
function redis.replicate_commands() return true end
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3
redis.REPL_NONE, redis.REPL_AOF, redis.REPL_SLAVE, redis.REPL_REPLICA, redis.REPL_ALL = 0, 1, 2, 2, 3

_G.redis = redis
for _, name in pairs({ 'dofile', 'loadfile', 'print', 'require', 'module', 'package' }) do _G[name] = nil end
setmetatable(_G, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})

return function(script) return xpcall(script, handler) end
"#;
