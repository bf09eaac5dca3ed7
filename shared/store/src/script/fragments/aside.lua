-- What was put aside: dead letters, and calls of the audit log that failed for good. The log is never changed, so which of
-- its calls somebody is done with stands in a set of its own, by when they were written.
local HANDLED = P .. 'handled'

-- Why nothing more can be done with it; nil where it is there and nobody is done with it.
local function nothing_to_do(kind, entry, handled_max)
  local stream = P .. (kind == 'call' and 'audit' or 'dead')
  if kind == 'call' and call('ZSCORE', HANDLED, entry) then return 'AGAIN' end
  if not call('XRANGE', stream, entry, entry)[1] then return 'GONE' end
  if kind ~= 'call' or call('ZCARD', HANDLED) < handled_max then return nil end
  -- What the log has no more needs no mark.
  call('ZREMRANGEBYSCORE', HANDLED, '-inf', '(' .. string.match(call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][1], '^%d+'))
  return call('ZCARD', HANDLED) >= handled_max and 'FULL' or nil
end

local function done_with(kind, entry)
  if kind == 'call' then
    call('ZADD', HANDLED, string.match(entry, '^%d+'), entry)
  else
    call('XDEL', P .. 'dead', entry)
  end
end
