
-- Checks locks that have waiters. Changes nothing.
-- KEYS the keys of the locks
-- Replies (`decode::checked`), for each lock:
--   BUSY, n             it expires in n ms
--   FREE                an attempt is worthwhile: the lock is free, or its time is over, or the key
--                       holds no lock
local function check(i)
  local key = KEYS[2 * i - 1]
  if redis.call('type', key).ok ~= 'string' then
    return 'FREE'
  end
  local value = redis.call('getrange', key, 0, 32)
  local digits = #value <= 32 and value:match('^(%d+)%.?%d*$')
  if not digits or #digits ~= 13 then
    return 'FREE'
  end
  local left = math.ceil(tonumber(value) - now)
  if left >= 0 then
    return {'BUSY', left}
  end
  -- A value with an expiry and without an owner key is the owner of a lock in another format:
  -- see acquire.lua.
  local expires = redis.call('pttl', key)
  return expires >= 0 and not noted(i, value) and {'BUSY', expires} or 'FREE'
end

local replies = {}
for i = 1, #KEYS / 2 do
  replies[i] = check(i)
end
return replies
