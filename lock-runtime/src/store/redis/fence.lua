-- Gives the owner of a lock a fencing token: higher than all before it, also if the server has lost its data since,
-- because it is no less than the server's time in µs. As text, because a number would lose digits.
-- KEYS[1] the lock   KEYS[2] the highest token of its slot   ARGV[1] owner token
-- Replies: a string, the fencing token; 0, the lock is gone; -1, it is somebody else's; -2, what is kept under
-- KEYS[2] is no fencing token.
local owner, unknown = read(KEYS[1])
if unknown then
  return unknown
end
if not owner then
  return 0
end
if owner ~= ARGV[1] then
  return -1
end
local time = redis.call('time')
local fence = time[1] * 1000000 + time[2]
local last
last, unknown = read(KEYS[2])
if unknown then
  return unknown
end
if last then
  last = type(last) == 'string' and last:match('^%d+$') and tonumber(last)
  -- From 2^53 on a number has no successor here.
  if not last or last >= 2 ^ 53 - 1 then
    return -2
  end
  fence = math.max(fence, last + 1)
end
fence = string.format('%.0f', fence)
redis.call('set', KEYS[2], fence)
return fence
