#!lua flags=allow-oom
-- switch_tool: takes a tool away from everybody at run time, or gives it back. It waits for no file to be in order.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 'off' or 'on' · 3 name or id of the tool · 4 audit entry, JSON ('' where a lost one is put back)
-- reply {OK | NONE, generation}: NONE where it was so already
-- effect HSET meta, XADD audit
local what, tool = ARGV[2], ARGV[3]
local gen, names = unpack(call('HMGET', META, 'tenants_gen', 'tools_off'))
gen, names = num(gen or 0), names or ' '
-- Names have no blanks, so a name between two of them is that name.
local known = string.find(names, ' ' .. tool .. ' ', 1, true)
if (what == 'off') == (known ~= nil) then return { 'NONE', gen } end
if known then
  names = string.sub(names, 1, known) .. string.sub(names, known + #tool + 2)
else
  names = names .. tool .. ' '
end
call('HSET', META, 'tenants_gen', gen + 1, 'tools_off', names)
if ARGV[4] ~= '' then call('XADD', P .. 'audit', '*', 'audit', ARGV[4]) end
return { 'OK', gen + 1 }
