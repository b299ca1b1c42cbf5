-- Ends the hold of an owner of lock i, and gives the lock to the claims whose turn it is then. If the
-- lock has to stay taken for `time` ms, the hold ends after that time instead, and the first claim is
-- told, because it would sleep until the end of the lease. The owner leaves the queue in any case.
-- KEYS and ARGV as for token/release.lua
-- Replies (`decode::released`): those of token/release.lua
-- The second result of the function is an error that leaves the outcome unknown.
local function release(i, owner, rest, time, queue)
  local state, unknown, own = held(i, owner)
  if unknown then
    return nil, unknown
  end
  -- An owner may have the lock and stand in the queue if two of its requests were served late.
  if rest ~= '' then
    redis.pcall('zrem', queue, owner .. rest, owner .. string.rep('-', 36) .. rest:sub(37))
  end
  if state ~= 'OWNED' then
    -- A writer that gives up may have held readers back.
    if not other_kind(KEYS[i], READER, END) then
      local is_lock = redis.call('exists', KEYS[i]) == 1
      settle(KEYS[i], queue, ARGV[1], not is_lock or end_leases(KEYS[i]))
    end
    return state
  end
  redis.call('zrem', KEYS[i], owner)
  time = tonumber(time)
  if time > 0 then
    -- Another name, so that no renewal in flight extends the hold.
    redis.call('zadd', KEYS[i], score(own - ends(own) + now + time), 'kept:' .. owner)
    last_for(KEYS[i], time)
    local unsent = tell_first(queue, ARGV[1])
    return unsent and {'UNPUBLISHED', unsent} or {'KEPT', 0}
  end
  local writer_ended = end_leases(KEYS[i]) or own >= WRITER
  local admitted, unsent = settle(KEYS[i], queue, ARGV[1], writer_ended)
  if unsent then
    return {'UNPUBLISHED', unsent}
  end
  return (admitted > 0 or redis.pcall('exists', queue) == 1) and 1 or 0
end
