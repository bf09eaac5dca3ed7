-- Replies: one stream per inbox, numbered, so that a reader sees a gap (rule 14).
local inboxes = {}

-- The inbox of the last reply: mostly the next one goes there too.
local box = {}

local function write_reply(tenant, inbox, text)
  if box.tenant ~= tenant or box.inbox ~= inbox then
    local name = tenant .. ':' .. inbox
    box = inboxes[name] or { name = name, key = P .. 'replies:' .. name, seq = num(call('GET', P .. 'seq:' .. name) or 0),
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

-- Marks an inbox as used, and trims it by age only: by `redis_ms`, which numbers its entries (rule 20). Where memory is
-- short, what was read goes at once.
local function keep_inbox(box, now, redis_ms, retain, lasts, tight) -- rarely
  call('XTRIM', box.key, 'MINID', '~', math.max(redis_ms - retain, 0))
  call('PEXPIRE', box.key, lasts)
  if tight then trim_inbox(box.name) end
  use_inboxes({ [box.tenant] = { now, box.inbox } }, lasts)
end

-- Once a batch: numbers are kept, and inboxes that nobody has kept within a thousandth of `retain`. For that, an inbox lasts
-- a thousandth longer.
local function save_inboxes(now, redis_ms, retain, tight)
  local lasts = retain + math.floor(retain / 1000)
  for name, box in pairs(inboxes) do
    call('SET', P .. 'seq:' .. name, box.number, 'PX', string.format('%d', retain * 4))
    local left = call('PTTL', box.key)
    if tight or left <= num(retain) or left > lasts then keep_inbox(box, now, redis_ms, retain, lasts, tight) end
  end
end
