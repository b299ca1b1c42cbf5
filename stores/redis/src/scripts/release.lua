
-- Frees lock i if `owner` has it, and wakes one waiter of each waiting process. If the lock has to
-- stay taken for `time` ms, it expires after that time instead. Its waiters are woken too, because
-- they may have seen a later expiry, and would sleep until then.
-- KEYS the keys of the locks
-- ARGV for each lock: owner, wake-up channel, for how many ms it stays taken; last: the message for
-- the channels
-- Replies (`decode::released`):
--   n                   it is free, and the message has reached n subscribers. Without a status,
--                       because a table for the usual reply would cost a tenth of a release
--   KEPT, n             it stays taken, and the message has reached n subscribers
--   UNPUBLISHED, error  it is free or stays taken, but the message could not be published: waiters
--                       poll
--   GONE                the lock does not exist
--   TAKEN               it has another owner, and was not changed
-- The second result of the function is an error that leaves the outcome unknown.
local each = #KEYS / ((#ARGV - 1) / 3)

local function release(i, owner, channel, time)
  local state, unknown = held(i, owner)
  if unknown then
    return nil, unknown
  end
  if state ~= 'OWNED' then
    return state
  end
  local stays = tonumber(time) > 0
  if stays then
    keep(i, owner, time)
  else
    redis.call('del', unpack(KEYS, (i - 1) * each + 1, i * each))
  end
  local subscribers = redis.pcall('publish', channel, ARGV[#ARGV])
  if type(subscribers) == 'table' then
    return {'UNPUBLISHED', subscribers.err}
  end
  return stays and {'KEPT', subscribers} or subscribers
end
