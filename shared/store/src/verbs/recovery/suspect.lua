#!lua flags=allow-oom
-- suspect: names the inbound entry that a scheduler is about to look into alone, or none: a crash counts against what
-- is named. However full memory is, for else what kills its readers would do so for ever.
-- KEYS  1 prefix
-- ARGV  1 injected clock · 2 stream (turns or tasks) · 3 consumer · 4 entry or ''
-- reply OK
-- effect HSET or HDEL suspects
local key, field = P .. 'suspects', ARGV[2] .. ' ' .. ARGV[3]
if ARGV[4] == '' then call('HDEL', key, field) else call('HSET', key, field, ARGV[4]) end
return 'OK'
