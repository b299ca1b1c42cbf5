-- Acquires a lock, or replies what prevents it.
-- KEYS[1] the lock
-- ARGV[1] owner id   ARGV[2] lease in ms
-- Replies (`decode::acquired`):
--   GRANTED             the owner has the lock
--   BUSY, n             another owner has the lock for n ms, or without an expiry if n is -1
--   WRONGFORMAT, kind   the key holds a value of this kind, which is no lock of this format
local kind = redis.call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'string' then
  return {'WRONGFORMAT', kind}
end
if kind == 'string' then
  local left = redis.call('pttl', KEYS[1])
  -- The value may be anything, of any length.
  local value = redis.call('getrange', KEYS[1], 0, #ARGV[1])
  if value ~= ARGV[1] then
    -- A time without an expiry is a lock of `Timestamp`.
    local digits = value:match('^(%d+)%.?%d*$')
    if left < 0 and digits and #digits == 13 then
      return {'WRONGFORMAT', 'Unix time in ms'}
    end
    return {'BUSY', left}
  end
  -- A late attempt must not shorten a lease that has been extended since.
  if left >= tonumber(ARGV[2]) then
    return 'GRANTED'
  end
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 'GRANTED'
