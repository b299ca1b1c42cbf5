-- Acquires a read-write lock, or replies what prevents it. A claim that waits stands in the queue.
-- KEYS[1] the lock, and the queue unless the server is a node of a cluster
-- ARGV[1] owner   ARGV[2] lease in ms
-- ARGV[3] the rest of its entry in the queue, or nothing if it does not wait
-- ARGV[4] the rest of the entry that it had, if it waited in another way before
-- ARGV[5] the queue, if it is not among the keys   ARGV[6] the prefix of the channels of clients
-- ARGV[7] `r` or `w`   ARGV[8] is there if the slot of the lock is being moved to this node
-- Replies (`decode::acquired`): those of token/acquire.lua
local key, queue = KEYS[1], KEYS[2] or ARGV[5]
local owner, lease = ARGV[1], tonumber(ARGV[2])
local mode = ARGV[7] == 'w' and WRITER or READER

-- Gives the lock to the owner in this mode.
local function grant(mode)
  redis.call('zadd', key, score(mode + now + lease), owner)
  last_for(key, lease)
  if ARGV[3] ~= '' or ARGV[4] ~= '' then
    redis.pcall('zrem', queue, owner .. ARGV[3], owner .. ARGV[4])
  end
  return 'GRANTED'
end

-- Extends the hold of the owner, whose score is `own`. A late attempt must not shorten a lease that was
-- extended since, nor undo a change of the mode.
local function keep(own)
  if ends(own) >= now + lease then
    return 'GRANTED'
  end
  last_for(key, lease)
  return grant(own - ends(own))
end

local function wait(left)
  local reply = enter_queue(queue, left, ARGV[8], mode == WRITER and 0 or READERS)
  if reply[1] == 'QUEUED' and mode == READER then
    reply[4] = readers_ahead(queue, reply[3], reply[4])
  end
  return reply
end

local is_other, unknown = other_kind(key, READER, END)
if is_other or unknown then
  return unknown or {'WRONGFORMAT', kind_of(key)}
end
local own = redis.call('zscore', key, owner)
if own and ends(own) > now then
  return keep(own)
end
-- Without holders, the lease of the last one has ended long ago.
local after_writer = redis.call('exists', key) == 0 or end_leases(key)
local last = redis.call('zrevrange', key, 0, 0, 'withscores')[2]
local is_shared = mode == READER and last and tonumber(last) < WRITER
if (not last or is_shared) and redis.pcall('exists', queue) == 0 then
  return grant(mode)
end
-- Others may come first, among them this claim itself.
settle(key, queue, ARGV[6], after_writer)
own = redis.call('zscore', key, owner)
if own then
  return keep(own)
end
last = redis.call('zrevrange', key, 0, 0, 'withscores')[2]
local first = redis.pcall('zrange', queue, 0, 0)
-- The queue may be a value of another type, which is no queue.
first = not first.err and first[1]
if not last and first and first:sub(1, 32) ~= owner then
  -- Very many clients before the next claim are gone. Another attempt goes on with the rest.
  return wait(20)
end
if not last or mode == READER and tonumber(last) < WRITER and not first then
  return grant(mode)
end
return wait(ends(last) - now)
