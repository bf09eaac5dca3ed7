#!lua flags=allow-oom
-- drop_dead: an operator is done with something that was put aside, and nothing more happens to it. A dead letter goes; a
-- call stays in the audit log, and is not listed as failed any more.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused) · 2 'letter' or 'call' · 3 its entry in the dead stream or the audit log · 4 calls at most
--       that somebody is done with · 5 audit entry, JSON
-- reply OK · GONE (it is not there any more) · AGAIN (somebody has done with it) · FULL (too many calls that somebody is
--       done with)
-- effect XDEL dead or ZADD handled, XADD audit
local why_not = nothing_to_do(ARGV[2], ARGV[3], num(ARGV[4]))
if why_not then return why_not end
done_with(ARGV[2], ARGV[3])
call('XADD', P .. 'audit', '*', 'audit', ARGV[5])
return 'OK'
