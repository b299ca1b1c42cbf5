-- Acquires several locks of one slot, or none of them.
-- KEYS the locks, and then their queues unless the server is a node of a cluster
-- ARGV[1] owner   ARGV[2] lease in ms   ARGV[3] and later: the queues, if they are not among the keys
-- An argument after the queues is there if the slot of the locks is being moved to this node.
-- Replies (`decode::acquired_all`):
--   GRANTED             the owner has all locks
--   BUSY, i             lock i is not free, or claims wait for it; nothing was changed
local locks = ARGV[3] and #KEYS or #KEYS / 2
if ARGV[3] or redis.call('exists', unpack(KEYS)) > 0 then
  -- The queues may still come from the other node.
  if ARGV[3 + locks] then
    return {'BUSY', 1}
  end
  for i = 1, locks do
    if redis.call('exists', KEYS[i]) == 1 then
      -- The value may be anything, of any length. An earlier attempt may have taken the lock.
      if redis.pcall('getrange', KEYS[i], 0, #ARGV[1]) ~= ARGV[1] then
        return {'BUSY', i}
      end
    -- A value of another type is no queue.
    elseif redis.call('type', KEYS[locks + i] or ARGV[2 + i]).ok == 'zset' then
      return {'BUSY', i}
    end
  end
end
for i = 1, locks do
  -- A late attempt must not shorten a lease that has been extended since. Whatever the key holds here is the owner's.
  if redis.call('pttl', KEYS[i]) < tonumber(ARGV[2]) then
    redis.call('set', KEYS[i], ARGV[1], 'px', ARGV[2])
  end
end
return 'GRANTED'
