-- Acquires a lock in the layout of `Token` without a queue, or replies what prevents it.
-- KEYS[1] the lock
-- ARGV[1] owner   ARGV[2] lease in ms
-- Replies (`decode::acquired`):
--   GRANTED             the owner has the lock
--   BUSY, n             another owner has the lock for n ms, or without an expiry if n is -1
--   WRONGFORMAT, kind   the key holds a value of this kind, which is no lock of this format
local left = redis.call('pttl', KEYS[1])
if left ~= -2 then
  -- The value may be anything, of any length.
  local value = redis.pcall('getrange', KEYS[1], 0, #ARGV[1])
  if type(value) == 'table' then
    local kind = kind_of(KEYS[1])
    return kind == 'string' and value or {'WRONGFORMAT', kind}
  end
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
