-- The reply to a claim that does not get the lock, which stands in the queue if it waits. ARGV as for
-- the script that acquires a lock; `is_moving` is there if its slot is being moved to this node.
local function enter_queue(queue, left, is_moving)
  -- A queue of the same name may still come from the other node, and must not exist here then.
  if ARGV[3] == '' or is_moving then
    return {'BUSY', left}
  end
  local entry = ARGV[1] .. ARGV[3]
  local time = redis.call('time')
  local ticket = string.format('%.0f', 1000000 * time[1] + time[2])
  if ARGV[4] ~= '' then
    local replaced = ARGV[1] .. ARGV[4]
    local score = redis.pcall('zscore', queue, replaced)
    if type(score) == 'string' then
      ticket = string.format('%.0f', score)
      redis.call('zrem', queue, replaced)
    end
  end
  local added = redis.pcall('zadd', queue, 'nx', ticket, entry)
  if type(added) == 'table' then
    -- The slot is being moved to another node, and the queue does not exist.
    local is_away = added.err:find('non local key', 1, true)
    return is_away and {'BUSY', left} or {'UNQUEUED', left, added.err}
  end
  if added == 0 then
    ticket = string.format('%.0f', redis.call('zscore', queue, entry))
  end
  local ahead = redis.call('zrank', queue, entry)
  if ahead < 10 then
    redis.call('pexpire', queue, 60000)
  end
  return {'QUEUED', left, ticket, ahead}
end

