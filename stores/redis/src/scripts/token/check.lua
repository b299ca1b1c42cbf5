-- Checks locks that claims wait for. Changes nothing but the expiry of the queues.
-- KEYS the keys of the locks, then the queues unless the server is a node of a cluster
-- ARGV for each lock: the entry of the claim in the queue, its ticket or nothing if it does not
-- stand in the queue, the queue if it is not among the keys
-- Replies (`decode::checked`), for each lock:
--   BUSY, n             it expires in n ms, or never if n is -1
--   QUEUED, n, m        the same, and the claim stands in the queue behind m others
--   FREE                an attempt is worthwhile: the lock is free, or given to the claim, or the
--                       claim has lost its place, or the key holds no lock of this format
local function check(i, entry, ticket, queue)
  local left = redis.call('pttl', KEYS[i])
  local value = left ~= -2 and redis.pcall('getrange', KEYS[i], 0, 32)
  if type(value) ~= 'string' or value == entry:sub(1, 32) then
    return 'FREE'
  end
  return place(queue, entry, ticket, left)
end

local replies = {}
for i = 1, #ARGV / 3 do
  local entry, ticket, queue = unpack(ARGV, 3 * i - 2, 3 * i)
  replies[i] = check(i, entry, ticket, KEYS[#ARGV / 3 + i] or queue)
end
return replies
