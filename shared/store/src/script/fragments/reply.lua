-- Replies: one stream per inbox, numbered, so that a reader sees a gap (rule 14).
local inboxes = {}

-- The inbox of the last reply: mostly the next one goes there too.
local box = {}

local function write_reply(tenant, inbox, text)
  if box.tenant ~= tenant or box.inbox ~= inbox then
    local name = tenant .. ':' .. inbox
    box = inboxes[name] or { name = name, key = replies_key(name), seq = num(call('GET', P .. 'seq:' .. name) or 0),
      tenant = tenant, inbox = inbox }
  end
  local number = string.format('%d', box.seq + 1)
  call('XADD', box.key, '*', 'reply', text, 'seq', number)
  box.seq, box.number, inboxes[box.name] = box.seq + 1, number, box
end

-- Rule 18: an inbox that holds something else costs its own replies; turns end all the same, and their records answer.
-- Answers whether the reply is in an inbox.
local function reply_to(tenant, inbox, text)
  return inbox ~= '' and pcall(write_reply, tenant, inbox, text)
end

-- Once a batch: numbers are kept, inboxes are marked as used and trimmed by age only: by `redis_ms`, which numbers their
-- entries (rule 20). Where memory is short, what was read goes at once.
local function save_inboxes(now, redis_ms, retain, tight)
  local used = {}
  for name, box in pairs(inboxes) do
    call('SET', P .. 'seq:' .. name, box.number, 'PX', retain * 4)
    local of = used[box.tenant] or {}
    of[#of + 1], of[#of + 2], used[box.tenant] = now, box.inbox, of
    call('XTRIM', replies_key(name), 'MINID', '~', math.max(redis_ms - retain, 0))
    call('PEXPIRE', replies_key(name), retain)
    if tight then trim_inbox(name) end
  end
  use_inboxes(used, retain)
end
