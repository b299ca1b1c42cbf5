-- Takes a lock, or says what is in the way.
-- KEYS[1] the lock   ARGV[1] owner token   ARGV[2] lease in ms
-- Replies: nil, it is ours; a number, it is somebody else's for so many ms (-1: for ever);
-- a string, it is no lock but a value of this type.
local kind = redis.call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'string' then
  return kind
end
if kind == 'string' then
  local left = redis.call('pttl', KEYS[1])
  if redis.call('get', KEYS[1]) ~= ARGV[1] then
    return left
  end
  -- A try that comes late must not shorten what the hold has been extended to since.
  if left >= tonumber(ARGV[2]) then
    return nil
  end
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return nil
