-- Acquires a lock, or replies what prevents it.
-- KEYS[1] the lock
-- ARGV[1] owner   ARGV[2] lease in ms
-- Replies (`decode::acquired`):
--   GRANTED             the owner has the lock
--   BUSY, n             another owner has the lock for n ms, or without an expiry if n is -1
--   WRONGFORMAT, type   the key holds a value of this type, which is no lock of this kind
local kind = redis.call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then
  return {'WRONGFORMAT', kind_of(KEYS[1])}
end
if kind == 'hash' then
  if redis.call('hexists', KEYS[1], 'mode') == 1 then
    return {'WRONGFORMAT', 'Redisson read-write lock'}
  end
  local left = redis.call('pttl', KEYS[1])
  if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return {'BUSY', left}
  end
  -- A late attempt must not shorten a lease that has been extended since.
  if left >= tonumber(ARGV[2]) then
    return 'GRANTED'
  end
end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return 'GRANTED'
