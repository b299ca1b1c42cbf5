-- Takes a lock, or says what is in the way.
-- KEYS[1] the lock   ARGV[1] owner   ARGV[2] lease in ms
-- Replies: GRANTED, it is ours; a number, it is somebody else's for so many ms (-1: for ever);
-- WRONGFORMAT and a text, it is no lock but a value of this type.
local kind = redis.call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then
  return {'WRONGFORMAT', kind}
end
if kind == 'hash' then
  local left = redis.call('pttl', KEYS[1])
  if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return left
  end
  -- A try that comes late must not shorten what the hold has been extended to since.
  if left >= tonumber(ARGV[2]) then
    return {ok = 'GRANTED'}
  end
end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return {ok = 'GRANTED'}
