-- The reply to a claim that does not get the lock, which stands in the queue if it waits. ARGV as for
-- the script that acquires a lock; `asked` is there if its slot is being moved to this node. `first` is
-- added to the ticket.
local function enter_queue(queue, left, asked, first)
  -- A queue of the same name may still come from the other node, and must not exist here then.
  if ARGV[3] == '' or asked then
    return {'BUSY', left}
  end
  local entry = ARGV[1] .. ARGV[3]
  local time = redis.call('time')
  local ticket = string.format('%.0f', first + 1000000 * time[1] + time[2])
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
    local is_moving = added.err:find('non local key', 1, true)
    return is_moving and {'BUSY', left} or {'UNQUEUED', left, added.err}
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

