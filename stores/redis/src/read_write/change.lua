-- Changes the mode of a hold.
-- KEYS[1] the lock, and the queue unless the server is a node of a cluster
-- ARGV[1] owner   ARGV[2] `r`: a reader from now on; `w`: a writer, if there is no other holder and no
-- claim waits   ARGV[3] the prefix of the channels of clients   ARGV[4] the queue, if it is not among the
-- keys
-- Replies (`decode::changed`):
--   CHANGED             the owner has the lock in this mode
--   BUSY                there are other readers, or a claim waits; nothing was changed
--   GONE, TAKEN         the owner does not have the lock
local key, queue = KEYS[1], KEYS[2] or ARGV[4]
local own = tonumber(redis.call('zscore', key, ARGV[1]))
local is_writer = own >= WRITER
if is_writer == (ARGV[2] == 'w') then
  return 'CHANGED'
end
last_for(key, ends(own) - now)
if is_writer then
  redis.call('zadd', key, score(own - WRITER + READER), ARGV[1])
  settle(key, queue, ARGV[3], true)
  return 'CHANGED'
end
settle(key, queue, ARGV[3], end_leases(key))
if redis.call('zcard', key) > 1 or redis.pcall('exists', queue) ~= 0 then
  return 'BUSY'
end
redis.call('zadd', key, score(own - READER + WRITER), ARGV[1])
return 'CHANGED'
