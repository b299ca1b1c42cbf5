
-- Gives the owner of a lock a fencing token: higher than all before it, also if the server has lost its data since,
-- because it is no less than the server's time in µs. As text, because a number would lose digits.
-- KEYS the lock's, then the highest token of its slot   ARGV[1] owner
-- Replies: a string, the fencing token; 0, the lock is gone; -1, it is somebody else's; -2, what is kept under the last
-- key is no fencing token.
local state, unknown = held(1, ARGV[1])
if unknown then
  return unknown
end
if state ~= 1 then
  return state
end
local time = redis.call('time')
local fence = time[1] * 1000000 + time[2]
local last = redis.pcall('get', KEYS[#KEYS])
if type(last) == 'table' and not last.err:find('WRONGTYPE', 1, true) then
  return last
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
redis.call('set', KEYS[#KEYS], fence)
return fence
