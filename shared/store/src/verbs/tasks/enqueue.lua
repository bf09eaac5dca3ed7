#!lua
-- enqueue: puts a message on the shard's inbound stream of tasks, unless that is full. Where a producer gave the task's id, it
-- is known from then on in which entry the task waits: until somebody has decided about it, nothing else tells that it came.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused) · 2 turns_max · 3 tenant:task that its producer gave, or '' · 4 message, JSON ·
--       5 tenant · 6 inbox or '' · 7 inbox_unread_max · 8 inboxes_max per tenant · 9 reply retain ms ·
--       10 turns_bytes_max · 11 tenant_bytes_max
-- reply OK <entry> · QUEUE_FULL · INBOX_FULL · TOO_MANY_INBOXES · PRESSURE
-- effect XADD tasks, HSET queued; ZADD inboxes (a new one)
local stream = P .. 'tasks'
local pressure, last_ms, memory_max = unpack(call('HMGET', META, 'pressure', 'last_ms', 'memory_max'))
if pressure == '1' then return 'PRESSURE' end
local length, bytes_max = call('XLEN', stream), num(ARGV[10])
if length >= num(ARGV[2]) then return 'QUEUE_FULL' end
-- Rule 19, as by submit: neither what waits nor one tenant's work may fill the memory.
memory_max = num(memory_max or 0) or 0
if memory_max > 0 then bytes_max = math.min(bytes_max, memory_max / 2) end
if length >= 64 and call('MEMORY', 'USAGE', stream, 'SAMPLES', 5) >= bytes_max then return 'QUEUE_FULL' end
-- Where neither inbox nor id names the tenant, `delegate` alone looks.
local tenant = ARGV[5] ~= '' and ARGV[5] or string.match(ARGV[3], '^[^:]+') or ''
local counted = sound(call('HGET', tenant_key(tenant), TENANT.bytes)) or 0
if counted + #ARGV[4] > tenant_bytes_max(ARGV[11], memory_max) then return 'QUEUE_FULL' end
local refusal = no_inbox(ARGV[5], ARGV[6], num(ARGV[7]), num(ARGV[8]), num(last_ms or 0), num(ARGV[9]))
if refusal then return refusal end
if ARGV[3] == '' then return 'OK ' .. call('XADD', stream, '*', INBOUND.task, ARGV[4]) end
local given = task_id_of(ARGV[3])
local entry = call('XADD', stream, '*', INBOUND.task, ARGV[4], INBOUND.given, given)
-- It is there for those who ask: what cannot be noted is taken in all the same.
redis.pcall('HSET', QUEUED, given, entry)
return 'OK ' .. entry
