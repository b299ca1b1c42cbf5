-- Acquires permits of a semaphore, or replies what prevents it. A claim that waits stands in the queue.
-- KEYS[1] the semaphore, and the queue unless the server is a node of a cluster
-- ARGV[1] owner   ARGV[2] lease in ms
-- ARGV[3] the rest of its entry in the queue, or nothing if it does not wait
-- ARGV[4] the rest of the entry that it had, if it waited in another way before
-- ARGV[5] the queue, if it is not among the keys   ARGV[6] the prefix of the channels of clients
-- ARGV[7] `p<permits>/<limit>/`   ARGV[8] is there if the slot of the semaphore is being moved to this node
-- Replies (`decode::claimed`): those of token/acquire.lua, or
--   LIMIT, limit, reply  the same, and a holder has asked for permits of this other limit
local key, queue = KEYS[1], KEYS[2] or ARGV[5]
local owner, lease = ARGV[1], tonumber(ARGV[2])
local count, limit = ARGV[7]:match('^p(%d+)/(%d+)/$')
count, limit = tonumber(count), tonumber(limit)

local function grant()
  give(key, owner, count, limit, lease)
  if ARGV[3] ~= '' or ARGV[4] ~= '' then
    redis.pcall('zrem', queue, owner .. ARGV[3], owner .. ARGV[4])
  end
  return 'GRANTED'
end

-- A late attempt must not shorten a lease that was extended since.
local function keep(own)
  if ends(own) >= now + lease then
    return 'GRANTED'
  end
  last_for(key, lease)
  return grant()
end

local function wait(left)
  local reply = enter_queue(queue, left, ARGV[8], 0)
  local last = redis.call('zrevrange', key, 0, 0)[1]
  local other = last and tonumber(last:match('/(%d+)$'))
  return other and other ~= limit and {'LIMIT', other, reply} or reply
end

local is_other, unknown = other_kind(key, PERMIT, END)
if is_other or unknown then
  return unknown or {'WRONGFORMAT', kind_of(key)}
end
local own = redis.call('zscore', key, permit(owner, 1, limit))
if own and ends(own) > now then
  return keep(own)
end
end_leases(key)
if redis.call('zcard', key) + count <= limit and redis.pcall('exists', queue) == 0 then
  return grant()
end
-- Others may come first, among them this claim itself.
local _, _, is_held_back = settle(key, queue, ARGV[6], owner)
own = redis.call('zscore', key, permit(owner, 1, limit))
if own then
  return keep(own)
end
if not is_held_back and redis.call('zcard', key) + count <= limit then
  return grant()
end
local next = redis.call('zrange', key, 0, 0, 'withscores')[2]
-- Without holders, very many clients before the next claim are gone. Another attempt goes on with the rest.
return wait(next and ends(next) - now or 20)
