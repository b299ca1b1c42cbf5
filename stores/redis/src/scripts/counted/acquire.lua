
-- Acquires shares of a lock, or replies what prevents it. A claim that waits stands in the queue.
-- KEYS[1] the lock, and the queue unless the server is a node of a cluster
-- ARGV[1] owner   ARGV[2] lease in ms
-- ARGV[3] the rest of its entry in the queue, or nothing if it does not wait
-- ARGV[4] the rest of the entry that it had, if it waited in another way before
-- ARGV[5] the queue, if it is not among the keys   ARGV[6] the prefix of the channels of clients
-- ARGV[7] `s<shares>/<capacity>/`   ARGV[8] is there if the slot of the lock is being moved to this node
-- Replies (`decode::claimed`): those of token/acquire.lua, or
--   LIMIT, capacity, reply  the same, and a holder has asked for shares of this other capacity
local key, queue = KEYS[1], KEYS[2] or ARGV[5]
local owner, lease = ARGV[1], tonumber(ARGV[2])
local shares, capacity = asked(ARGV[7])

local function granted()
  if ARGV[3] ~= '' or ARGV[4] ~= '' then
    redis.pcall('zrem', queue, owner .. ARGV[3], owner .. ARGV[4])
  end
  return 'GRANTED'
end

local function grant()
  give(key, owner .. '/' .. shares .. '/' .. capacity, lease)
  return granted()
end

-- Whether the owner has the lock. A late attempt must not shorten a lease that was extended since, nor undo a change of the
-- mode.
local function keeps()
  if held(1, owner, ARGV[7]) ~= 'OWNED' then
    return false
  end
  if ends(found_score) < now + lease then
    last_for(key, lease)
    redis.call('zadd', key, score(COUNTED + now + lease), found)
  end
  return true
end

local function wait(left)
  local reply = enter_queue(queue, left, ARGV[8])
  local last = capacity ~= ALL and redis.call('zrange', key, -1, -1)[1]
  local other = last and last:match('/(%d+)$')
  return other and other ~= capacity and {'LIMIT', tonumber(other), reply} or reply
end

local is_other, unknown = other_kind(key, capacity)
if is_other or unknown then
  return unknown or {'WRONGFORMAT', kind_of(key)}
end
if keeps() then
  return granted()
end
end_leases(key)
local function fits()
  return taken(key) + shares <= tonumber(capacity)
end
if fits() and redis.pcall('exists', queue) == 0 then
  return grant()
end
-- Others may come first, among them this claim itself.
local _, _, is_held_back = settle(key, queue, ARGV[6], owner)
if keeps() then
  return granted()
end
if not is_held_back and fits() then
  return grant()
end
local next = redis.call('zrange', key, 1, 1, 'withscores')[2]
-- Without holders, very many clients before the next claim are gone. Another attempt goes on with the rest.
return wait(next and ends(next) - now or 20)
