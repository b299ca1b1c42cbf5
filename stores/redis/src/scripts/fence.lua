
-- Issues a fencing token to the owner of a lock: a number above all earlier ones. It is at least
-- the server's time in µs, so it rises even if the server has lost its data since.
-- KEYS the keys of the lock, then that of the highest token in its hash slot
-- ARGV[1] owner   ARGV[2] the lowest token to issue
-- ARGV[3] by how many µs the token may be ahead of the server's time, if that has a limit
-- Replies (`decode::fenced`):
--   ISSUED, token       the fencing token, as a string (a number would lose digits)
--   GONE                the lock does not exist
--   TAKEN               it has another owner
--   AHEAD, n            it would be n µs ahead of the server's time, and was not issued
--   WRONGFORMAT, kind   the last key holds a value of this kind
--   an error            a key could not be read
local time = redis.call('time')
local now = time[1] * 1000000 + time[2]
local fence = math.max(now, tonumber(ARGV[2]))
local last = redis.pcall('get', KEYS[#KEYS])
if type(last) == 'table' then
  local kind = redis.call('type', KEYS[#KEYS]).ok
  return kind ~= 'string' and {'WRONGFORMAT', kind} or last
end
if last then
  last = last:match('^%d+$') and tonumber(last)
  -- From 2^53 on, Lua cannot represent every integer, so the next token might not be higher.
  if not last or last >= 2 ^ 53 - 1 then
    return {'WRONGFORMAT', 'different value'}
  end
  fence = math.max(fence, last + 1)
end
if ARGV[3] and fence - now > tonumber(ARGV[3]) then
  return {'AHEAD', fence - now}
end
fence = string.format('%.0f', fence)
redis.call('set', KEYS[#KEYS], fence)
return {'ISSUED', fence}
