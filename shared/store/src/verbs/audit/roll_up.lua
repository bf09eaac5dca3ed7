#!lua
-- roll_up: adds counts of calls that somebody has read from the audit log to those of their days, and says how far the log is
-- counted: each entry counts once, whoever counts, and whoever dies meanwhile.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused) · 2 the entry up to which the log was counted before, '' for none · 3 the one up to which it
--       is counted with this · 4 ms for which the counts of a day are kept · 5 fields of a day at most · 6 count, then per
--       addition: day · field · the field that takes it where the day has too many · amount
-- reply OK · STALE (somebody else has counted on: nothing was added)
-- effect HINCRBY stats, HSET rolled
local ROLLED = P .. 'rolled'
if (call('HGET', ROLLED, 'upto') or '') ~= ARGV[2] then return 'STALE' end
local keep, fields_max = ARGV[4], num(ARGV[5])
local fields = {}
for i = 1, num(ARGV[6]) do
  local at = i * 4 + 3
  local key, field = P .. 'stats:' .. ARGV[at], ARGV[at + 1]
  if not fields[key] then
    fields[key] = call('HLEN', key)
  end
  if fields[key] >= fields_max and call('HEXISTS', key, field) == 0 then field = ARGV[at + 2] end
  if call('HINCRBY', key, field, ARGV[at + 3]) == num(ARGV[at + 3]) then fields[key] = fields[key] + 1 end
end
for key in pairs(fields) do call('PEXPIRE', key, keep) end
call('HSET', ROLLED, 'upto', ARGV[3])
return 'OK'
