
-- Takes a lock, or says what is in the way. One that has expired is taken over, as others do by GETSET: whichever of us
-- is second finds a time that is to come.
-- KEYS the lock's   ARGV[1] owner   ARGV[2] lease in ms
-- Replies: GRANTED, it is ours; a number, it is somebody else's for so many ms; WRONGFORMAT and a text, it is no lock
-- but a value of this type.
local kind = redis.call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'string' then
  return {'WRONGFORMAT', kind}
end
if kind == 'string' then
  -- It may be anything, of any length. Seconds would be milliseconds of a time that is long over.
  local value = redis.call('getrange', KEYS[1], 0, 32)
  local digits = #value <= 32 and value:match('^(%d+)%.?%d*$')
  if not digits or #digits ~= 13 then
    return {'WRONGFORMAT', 'string'}
  end
  local left = math.ceil(tonumber(value) - now)
  local expires = redis.call('pttl', KEYS[1])
  if left < 0 and expires >= 0 and not noted(1, value) then
    -- Theirs have no expiry, and ours have a note: it is the token of a lock of another kind.
    return expires
  end
  if left >= 0 then
    if held(1, ARGV[1]) ~= 1 then
      return left
    end
    -- A try that comes late must not shorten what the hold has been extended to since.
    if left >= tonumber(ARGV[2]) then
      return {ok = 'GRANTED'}
    end
  end
end
write(1, ARGV[1], ARGV[2])
return {ok = 'GRANTED'}
