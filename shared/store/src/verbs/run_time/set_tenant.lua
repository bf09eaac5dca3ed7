#!lua flags=allow-oom
-- set_tenant: declares a tenant at run time, takes the declaration back, or puts a lost one back that somebody still
-- knows. Whoever decides by older declarations is told so by the generation (rule 17), and the names kept beside it
-- tell a declaration that was lost from one that was taken back.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 'set', 'unset' or 'restore' · 3 tenant · 4 its declaration, JSON ('' for unset) ·
--       5 audit entry, JSON ('' for restore)
-- reply {OK | NONE, generation}: NONE where there was nothing to take back, or nothing was missing
-- effect HSET or HDEL tenants, HSET meta, XADD audit
local what, tenant, declaration = ARGV[2], ARGV[3], ARGV[4]
local TENANTS = P .. 'tenants'
local gen, names = unpack(call('HMGET', META, 'tenants_gen', 'tenants_set'))
gen, names = num(gen or 0), names or ' '
-- Names have no blanks, so a name between two of them is that name.
local known = string.find(names, ' ' .. tenant .. ' ', 1, true)
local there = call('HEXISTS', TENANTS, tenant) == 1
if what == 'restore' and there or what == 'unset' and not there and not known then return { 'NONE', gen } end
if what == 'unset' then
  call('HDEL', TENANTS, tenant)
  if known then names = string.sub(names, 1, known) .. string.sub(names, known + #tenant + 2) end
else
  call('HSET', TENANTS, tenant, declaration)
  if not known then names = names .. tenant .. ' ' end
end
call('HSET', META, 'tenants_gen', gen + 1, 'tenants_set', names)
if ARGV[5] ~= '' then call('XADD', P .. 'audit', '*', 'audit', ARGV[5]) end
return { 'OK', gen + 1 }
