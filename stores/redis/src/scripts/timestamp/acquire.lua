
-- Acquires a lock, or replies what prevents it. A lock whose time is over is taken over, which
-- other clients do with GETSET. Of two clients that take it over, the second one finds a time in
-- the future.
-- KEYS the keys of the lock
-- ARGV[1] owner   ARGV[2] lease in ms
-- Replies (`decode::acquired`):
--   GRANTED             the owner has the lock
--   BUSY, n             another owner has the lock for n ms
--   WRONGFORMAT, type   the key holds a value of this type, which is no lock
local kind = kind_of(KEYS[1])
if kind ~= 'none' and kind ~= 'string' then
  return {'WRONGFORMAT', kind}
end
if kind == 'string' then
  -- The value may be anything, of any length. A time in seconds is rejected: read as milliseconds,
  -- it would be long over.
  local value = redis.call('getrange', KEYS[1], 0, 32)
  local digits = #value <= 32 and value:match('^(%d+)%.?%d*$')
  if not digits or #digits ~= 13 then
    return {'WRONGFORMAT', 'string'}
  end
  local left = math.ceil(tonumber(value) - now)
  local expires = redis.call('pttl', KEYS[1])
  if left < 0 and expires >= 0 and not noted(1, value) then
    -- Locks of other clients have no expiry, and locks of this library have an owner key. The value
    -- is therefore the owner of a lock in another format.
    return {'BUSY', expires}
  end
  if left >= 0 then
    if held(1, ARGV[1]) ~= 'OWNED' then
      return {'BUSY', left}
    end
    -- A late attempt must not shorten a lease that has been extended since.
    if left >= tonumber(ARGV[2]) then
      return 'GRANTED'
    end
  end
end
write(1, ARGV[1], ARGV[2])
return 'GRANTED'
