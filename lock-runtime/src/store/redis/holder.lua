-- Who has a lock, in any layout.
-- KEYS[1] the lock   ARGV[1] the key of its owner in the layout `Timestamp`, which is in the same slot. Not among
-- the keys, because the users of other layouts may not read it.
-- Replies: the beginning of what names the holder, or of one of the holders; nothing if there is none
local kind = redis.call('type', KEYS[1]).ok
if kind == 'string' then
  local owner = redis.call('getrange', KEYS[1], 0, 63)
  if not owner:match('^%d+%.?%d*$') then
    return owner
  end
  -- A time names nobody. The owner was written with the same time, unless another client has the lock now.
  local note = redis.call('getrange', ARGV[1], 0, 95)
  return note:sub(-#owner - 1) == ':' .. owner and note or ''
elseif kind == 'hash' and redis.call('hlen', KEYS[1]) < 10 then
  return redis.call('hkeys', KEYS[1])[1]
elseif kind == 'zset' then
  return redis.call('zrange', KEYS[1], 0, 0)[1]
end
