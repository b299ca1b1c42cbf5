
-- Looks at locks that are waited for. Changes nothing.
-- KEYS the locks'
-- Replies: for each lock, for how many ms it is still somebody's; -2, it is worth a try: it is free, its time is over, or
-- it is no lock.
local function look(i)
  local key = KEYS[2 * i - 1]
  if redis.call('type', key).ok ~= 'string' then
    return -2
  end
  local value = redis.call('getrange', key, 0, 32)
  local digits = #value <= 32 and value:match('^(%d+)%.?%d*$')
  if not digits or #digits ~= 13 then
    return -2
  end
  local left = math.ceil(tonumber(value) - now)
  if left >= 0 then
    return left
  end
  -- One that expires and has no note is somebody else's token: see acquire.lua.
  local expires = redis.call('pttl', key)
  return expires >= 0 and not noted(i, value) and expires or -2
end

local replies = {}
for i = 1, #KEYS / 2 do
  replies[i] = look(i)
end
return replies
