
-- Writes lock i for `owner`, with a time `lease` ms from now. The keys stay for another minute, so
-- that other clients find a lock whose time is over. If the key vanished between the GET and the
-- GETSET of another client, that client would write its own time without taking the lock, and no
-- client would have the lock for that client's lease.
local function write(i, owner, lease)
  local value = string.format('%.0f', now + lease)
  redis.call('set', KEYS[2 * i], owner .. ':' .. value, 'px', lease + 60000)
  redis.call('set', KEYS[2 * i - 1], value, 'px', lease + 60000)
end
