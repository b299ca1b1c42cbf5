-- Extends locks, each on its own, where their owners still have them; never shortens one. PEXPIRE, because a SET would
-- be refused when the server is out of memory.
-- KEYS the locks   ARGV for each lock: owner token, lease in ms
-- Replies: for each lock 1, extended; 0, it is gone; -1, it is somebody else's.
local replies = {}
for i, key in ipairs(KEYS) do
  local owner, unknown = read(key)
  if unknown then
    return unknown
  end
  if not owner then
    replies[i] = 0
  elseif owner ~= ARGV[2 * i - 1] then
    replies[i] = -1
  else
    if redis.call('pttl', key) < tonumber(ARGV[2 * i]) then
      redis.call('pexpire', key, ARGV[2 * i])
    end
    replies[i] = 1
  end
end
return replies
