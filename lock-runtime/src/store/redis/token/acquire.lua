-- Takes a lock, or says what is in the way.
-- KEYS[1] the lock   ARGV[1] owner token   ARGV[2] lease in ms
-- Replies: GRANTED, it is ours; a number, it is somebody else's for so many ms (-1: for ever);
-- WRONGFORMAT and a text, it is no lock of this format but such a value.
local kind = redis.call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'string' then
  return {'WRONGFORMAT', kind}
end
if kind == 'string' then
  local left = redis.call('pttl', KEYS[1])
  -- It may be anything, of any length.
  local value = redis.call('getrange', KEYS[1], 0, #ARGV[1])
  if value ~= ARGV[1] then
    -- A time that never expires is a lock of `Timestamp`.
    local digits = value:match('^(%d+)%.?%d*$')
    if left < 0 and digits and #digits == 13 then
      return {'WRONGFORMAT', 'Unix time in ms'}
    end
    return left
  end
  -- A try that comes late must not shorten what the hold has been extended to since.
  if left >= tonumber(ARGV[2]) then
    return {ok = 'GRANTED'}
  end
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return {ok = 'GRANTED'}
