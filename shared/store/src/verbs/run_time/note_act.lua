#!lua flags=allow-oom
-- note_act: writes down what an operator is about to do by other verbs, of which each does its part alone.
-- KEYS  1 prefix
-- ARGV  1 injected clock (unused) · 2 audit entry, JSON
-- reply OK
-- effect XADD audit
call('XADD', P .. 'audit', '*', 'audit', ARGV[2])
return 'OK'
