#!lua flags=allow-oom
-- seal: lengthens the chains of seals by what a sealer has made of the entries behind the last one that is sealed. One
-- sealer at a time has the lease; whoever goes by an older state writes nothing, so that no entry is sealed twice, and none
-- left out. With no seals it only takes the lease, and answers where to go on.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 sealer · 3 lease ms · 4 the state that it goes by · 5 the state afterwards · 6 key id · 7 public
--       key · 8 count of seals, then per seal: tenant · the head of its chain with it · body · signature
-- reply {HELD} (another has the lease) · {KEY} (another key has this id) · {STALE, now, state} · {OK, now, state}
-- effect SET sealer; HSET sealing, seal_heads, seal_keys; XADD seals
local now = clock(ARGV[1])
local lease = P .. 'sealer'
if is_taken(lease, ARGV[2], now) then return { 'HELD' } end
local known = call('HGET', P .. 'seal_keys', ARGV[6])
if known and known ~= ARGV[7] then return { 'KEY' } end
take(lease, ARGV[2], now, ARGV[3])
local state, count = call('HGET', P .. 'sealing', 'state') or '', num(ARGV[8])
if state ~= ARGV[4] then return { 'STALE', now, state } end
if ARGV[5] == state then return { 'OK', now, state } end
if not known then call('HSET', P .. 'seal_keys', ARGV[6], ARGV[7]) end
-- What is trimmed of the log takes the seals with lower ids along. Redis' clock may have numbered entries days ahead before
-- it stepped back; shard time has not: by it no seal has a lower id than its entries.
local id = string.format('%.0f-*', now)
local function add(body, signature)
  local added = redis.pcall('XADD', P .. 'seals', id, 'body', body, 'signature', signature)
  if type(added) == 'table' and added.err then call('XADD', P .. 'seals', '*', 'body', body, 'signature', signature) end
end
for i = 0, count - 1 do
  local at = 9 + 4 * i
  call('HSET', P .. 'seal_heads', ARGV[at], ARGV[at + 1])
  add(ARGV[at + 2], ARGV[at + 3])
end
call('HSET', P .. 'sealing', 'state', ARGV[5])
return { 'OK', now, ARGV[5] }
