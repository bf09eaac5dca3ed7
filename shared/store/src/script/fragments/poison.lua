-- A reply for an inbound entry that has killed whoever read it: nobody parses it any more, so only what is plain to see
-- is read, by text patterns over its beginning.
local POISON_LOOK_BYTES = 65536
local POISON_MESSAGE = 'The processes that read this message died of it, again and again. It was not carried out.'

-- The one value that a message gives to a name; nil where it has none, or several: they might be another's.
local function only_value(text, name)
  local quoted = '"' .. name .. '"'
  local _, after = string.find(text, quoted, 1, true)
  if not after or string.find(text, quoted, after + 1, true) then return nil end
  return string.match(text, '^%s*:%s*"([%w_.-]+)"', after + 1)
end

-- Only into an inbox that its tenant uses already: nothing here is checked.
local function reply_to_poison(queue, origin, fields)
  local text = ''
  for i = 1, #fields, 2 do
    if fields[i] .. 's' == queue then text = string.sub(fields[i + 1], 1, POISON_LOOK_BYTES) end
  end
  local tenant, inbox = only_value(text, 'tenant'), only_value(text, 'reply_to')
  if not (tenant and inbox and has_inbox(tenant, inbox)) then return end
  local name = queue == 'turns' and 'turn_id' or 'task_id'
  local minted = string.match(origin, '^%d+%-%d+$') and (queue == 'turns' and 't' or 'k') .. origin
  local id = only_value(text, name) or minted
  -- A copy of what is known otherwise, which has its reply or will have it.
  local tt = id and tenant .. ':' .. id
  if tt and call('EXISTS', turn_key(tt), done_key(tt)) > 0 then return end
  local agent = only_value(text, queue == 'turns' and 'agent' or 'target_agent') or ''
  local box, left = tenant .. ':' .. inbox, call('PTTL', P .. 'inboxes:' .. tenant)
  local seq = call('INCR', P .. 'seq:' .. box)
  call('XADD', replies_key(box), '*', 'reply', '{' .. (id and '"' .. name .. '":"' .. id .. '",' or '') .. '"tenant":"' .. tenant
    .. '","agent":"' .. agent .. '","status":"rejected","dialect":"raw","results":[],"error":{"code":"poison","message":"' .. POISON_MESSAGE .. '"}}',
    'seq', string.format('%d', seq))
  if left > 0 then
    call('PEXPIRE', P .. 'seq:' .. box, left * 4, 'NX')
    call('PEXPIRE', replies_key(box), left, 'NX')
  end
end
