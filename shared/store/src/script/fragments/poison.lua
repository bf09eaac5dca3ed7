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

-- Whether a reply may make an inbox. Nothing in the message is checked, and no script knows the tenants that there are:
-- only one whose turns were admitted before, or whose id was accepted with this very entry, is known.
local function may_have_inbox(tenant, tt, given, inboxes_max, now, retain)
  local known = call('EXISTS', tenant_key(tenant)) == 1
    or tt and tt == given and redis.pcall('GETRANGE', id_key(tt), 0, 0) == 'q'
  return known and has_room_for_inbox(tenant, inboxes_max, now, retain)
end

-- Only into an inbox that its tenant uses already, or may have (`retain` ms).
local function reply_to_poison(queue, origin, fields, inboxes_max, now, retain)
  local text, given = '', nil
  for i = 1, #fields, 2 do
    if fields[i] .. 's' == queue then text = string.sub(fields[i + 1], 1, POISON_LOOK_BYTES) end
    if fields[i] == INBOUND.given then given = fields[i + 1] end
  end
  local tenant, inbox = only_value(text, 'tenant'), only_value(text, 'reply_to')
  if not (tenant and inbox) then return end
  local name = queue == 'turns' and 'turn_id' or 'task_id'
  local minted = string.match(origin, '^%d+%-%d+$') and (queue == 'turns' and 't' or 'k') .. origin
  local id = only_value(text, name) or minted
  -- A copy of what is known otherwise, which has its reply or will have it.
  local tt = id and tenant .. ':' .. id
  if tt and call('EXISTS', turn_key(tt), done_key(tt)) > 0 then return end
  if not has_inbox(tenant, inbox) then
    if not may_have_inbox(tenant, tt, given, inboxes_max, now, retain) then return end
    use_inboxes({ [tenant] = { now, inbox } }, retain)
  end
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
