-- What is kept for good comes in only while memory is not short (rule 19): nothing would ever free it. The server is
-- asked, for the flag in `meta` is as old as the last scheduler.
local function is_memory_short()
  local info = call('INFO', 'memory')
  local used, max = num(string.match(info, 'used_memory:(%d+)')), num(string.match(info, 'maxmemory:(%d+)'))
  return max > 0 and used >= max * 0.8
end
