
-- Frees lock i if `owner` has it, or gives it to the first claim that waits. If the lock has to stay
-- taken for `time` ms, it expires after that time instead, and the first claim is told, because it
-- would sleep until the end of the lease. If `time` is negative, the lock is left free for so many
-- ms before the first claim makes an attempt, so that clients that poll get it as well. The
-- owner leaves the queue in any case.
-- KEYS the keys of the locks, then the queues unless the server is a node of a cluster
-- ARGV[1] the prefix of the channels of clients
-- ARGV[2] and later, for each lock: owner, the rest of its entry in the queue or nothing if it never
-- waited, for how many ms it stays taken, the queue if it is not among the keys; a single release may
-- omit the last three if they are nothing, 0 and nothing
-- Replies (`decode::released`):
--   n                   it is free, or given to the next claim (1) if there is one
--   KEPT, n             it stays taken
--   UNPUBLISHED, error  it is given to the next claim, free or stays taken, but the message could not be
--                       published
--   GONE                the lock does not exist
--   TAKEN               it has another owner, and was not changed
-- The second result of the function is an error that leaves the outcome unknown.
-- Lets the first claim in a queue whose client can be reached make an attempt after a pause. Returns
-- whether there is one, and the error if the message could not be sent.
local function tell_first(queue, pause)
  for _ = 1, 1000 do
    local first = redis.pcall('zrange', queue, 0, 0)[1]
    if type(first) ~= 'string' or #first <= 68 then
      return false
    end
    local message = first:sub(1, 32) .. ' 0 ' .. pause
    if first:byte(33) == 45 then
      return true
    end
    local is_told, unsent = tell(ARGV[1] .. first:sub(33, 68), message)
    if is_told then
      return true, unsent
    end
    redis.call('zrem', queue, first)
  end
  return false
end

local function release(i, owner, rest, time, queue)
  local state, unknown = held(i, owner)
  if unknown then
    return nil, unknown
  end
  -- An owner may have the lock and stand in the queue if two of its requests were served late.
  if rest ~= '' then
    redis.pcall('zrem', queue, owner .. rest, owner .. string.rep('-', 36) .. rest:sub(37))
  end
  if state ~= 'OWNED' then
    return state
  end
  time = tonumber(time)
  if time > 0 then
    keep(i, owner, time)
    local _, unsent = tell_first(queue, 0)
    return unsent and {'UNPUBLISHED', unsent} or {'KEPT', 0}
  end
  local is_told, unsent = false, nil
  if time < 0 then
    is_told, unsent = tell_first(queue, -time)
  end
  if is_told then
    redis.call('del', KEYS[i])
    local now = redis.call('time')
    local gap = 8e15 + 1000 * now[1] + math.floor(now[2] / 1000) - time
    redis.pcall('zadd', queue, string.format('%.0f', gap), 'gap')
    return unsent and {'UNPUBLISHED', unsent} or 1
  end
  local next_owner, unpublished = transfer(KEYS[i], queue, ARGV[1])
  if next_owner then
    return unpublished and {'UNPUBLISHED', unpublished} or 1
  end
  redis.call('del', KEYS[i])
  return 0
end
