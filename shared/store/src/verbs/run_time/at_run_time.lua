#!lua flags=no-writes
-- at_run_time: what was set at run time, as of one moment: its generation must not be older or newer than the rest.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused)
-- reply {generation, names of the tenants that were set, names of the tools that are off, tenant, declaration…}; a pause is
--       told as tenant:agent, tenant:, !tenant:tool or !:tool with its note, which no tenant is called
-- effect none
local gen, names, tools_off = unpack(call('HMGET', META, 'tenants_gen', 'tenants_set', 'tools_off'))
local reply = { gen or '0', names or '', tools_off or '' }
local declared = call('HGETALL', P .. 'tenants')
for i = 1, #declared do reply[i + 3] = declared[i] end
local pauses = call('HGETALL', P .. 'pauses')
for i = 1, #pauses do reply[#reply + 1] = pauses[i] end
return reply
