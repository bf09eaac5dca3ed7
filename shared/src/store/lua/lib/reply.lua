-- Replies: one stream per inbox, numbered, so that a reader sees a gap (rule 14).
local inboxes = {}

local function write_reply(tenant, inbox, text)
  local name = tenant .. ':' .. inbox
  local box = inboxes[name]
  if not box then
    box = { seq = num(call('GET', P .. 'seq:' .. name) or 0) }
  end
  box.seq = box.seq + 1
  call('XADD', P .. 'replies:' .. name, '*', 'reply', text, 'seq', string.format('%d', box.seq))
  inboxes[name] = box
end

-- Rule 18: an inbox that holds something else costs its own replies; turns end all the same, and their records answer.
local function reply_to(tenant, inbox, text)
  if inbox ~= '' then pcall(write_reply, tenant, inbox, text) end
end

-- Once a batch: numbers are kept, inboxes are marked as used and trimmed by age only.
local function save_inboxes(now, retain)
  for name, box in pairs(inboxes) do
    call('SET', P .. 'seq:' .. name, box.seq, 'PX', retain * 4)
    call('ZADD', P .. 'inboxes', now, name)
    call('XTRIM', P .. 'replies:' .. name, 'MINID', '~', math.max(now - retain, 0))
    call('PEXPIRE', P .. 'replies:' .. name, retain)
  end
end
