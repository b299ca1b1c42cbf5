
-- Changes the mode of a hold.
-- KEYS[1] the lock, and the queue unless the server is a node of a cluster
-- ARGV[1] owner   ARGV[2] the shares of the mode: a reader from now on; or a writer, if there is no other holder and no
-- claim waits   ARGV[3] the prefix of the channels of clients   ARGV[4] the queue, if it is not among the keys
-- Replies (`decode::changed`):
--   CHANGED             the owner has the lock in this mode
--   BUSY                there are other readers, or a claim waits; nothing was changed
--   GONE, TAKEN         the owner does not have the lock
local key, queue = KEYS[1], KEYS[2] or ARGV[4]
local shares = tonumber((asked(ARGV[2])))
local more = shares - shares_of(found)
if more == 0 then
  return 'CHANGED'
end
last_for(key, ends(found_score) - now)
if more > 0 then
  end_leases(key)
  settle(key, queue, ARGV[3])
  if taken(key) + more > tonumber(ALL) or redis.pcall('exists', queue) ~= 0 then
    return 'BUSY'
  end
end
local name = ARGV[1] .. '/' .. score(shares) .. '/' .. ALL
redis.call('zadd', key, score(taken(key) + more), 'taken', score(found_score), name)
redis.call('zrem', key, found)
if more < 0 then
  end_leases(key)
  settle(key, queue, ARGV[3])
end
return 'CHANGED'
