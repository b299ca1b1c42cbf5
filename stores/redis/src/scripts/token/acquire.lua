-- Acquires a lock, or replies what prevents it. A claim that waits stands in the queue.
-- KEYS[1] the lock, and the queue unless the server is a node of a cluster
-- ARGV[1] owner   ARGV[2] lease in ms
-- ARGV[3] the rest of its entry in the queue, or nothing if it does not wait
-- ARGV[4] the rest of the entry that it had, if it waited in another way before
-- ARGV[5] the queue, if it is not among the keys   ARGV[6] the prefix of the channels of clients
-- ARGV[7] is there if the slot of the lock is being moved to this node
-- Replies (`decode::acquired`):
--   GRANTED                  the owner has the lock
--   BUSY, n                  another owner has the lock for n ms, or without an expiry if n is -1
--   QUEUED, n, ticket, m     the same; the claim stands in the queue behind m others
--   UNQUEUED, n, error       the same; the claim could not be put into the queue
--   WRONGFORMAT, kind        the key holds a value of this kind, which is no lock of this format
local queue = KEYS[2] or ARGV[5]

local function busy(left)
  return enter_queue(queue, left, ARGV[7])
end

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
    return busy(left)
  end
  -- A late attempt must not shorten a lease that has been extended since.
  if left >= tonumber(ARGV[2]) then
    return 'GRANTED'
  end
else
  -- The lock is free: it has expired, a client released it that knows no queue, or there is a gap for
  -- such clients. The first claim in the queue comes first.
  local first = redis.pcall('zrange', queue, 0, 0)[1]
  if type(first) == 'string' and first ~= 'gap' then
    local gap, now = redis.pcall('zscore', queue, 'gap'), redis.call('time')
    local rest = type(gap) == 'string' and gap - 8e15 - 1000 * now[1] - now[2] / 1000 or 0
    if rest > 0 then
      return busy(math.ceil(rest))
    end
  end
  if type(first) == 'string' and first:sub(1, #ARGV[1]) ~= ARGV[1] then
    local owner = transfer(KEYS[1], queue, ARGV[6])
    if owner and owner ~= ARGV[1] then
      return busy(redis.call('pttl', KEYS[1]))
    end
    -- Very many clients before the next claim are gone. Another attempt goes on with the rest.
    first = not owner and redis.pcall('zrange', queue, 0, 0)[1]
    if type(first) == 'string' and first ~= 'gap' and first:sub(1, #ARGV[1]) ~= ARGV[1] then
      return busy(20)
    end
  end
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
if ARGV[3] ~= '' or ARGV[4] ~= '' then
  redis.pcall('zrem', queue, ARGV[1] .. ARGV[3], ARGV[1] .. ARGV[4])
end
return 'GRANTED'
