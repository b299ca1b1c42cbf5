-- Ends the hold of an owner of semaphore i, and gives permits to the claims whose turn it is then. If the
-- permits have to stay taken for `time` ms, they end after that time instead, and the first claim is told,
-- because it would sleep until the end of the lease. The owner leaves the queue in any case.
-- KEYS and ARGV as for token/release.lua, but the rest of the entry always has `p<permits>/<limit>/`
-- Replies (`decode::released`): those of token/release.lua
-- The second result of the function is an error that leaves the outcome unknown.
local function release(i, owner, rest, time, queue)
  local count, limit = rest:match('p(%d+)/(%d+)/')
  count = tonumber(count)
  local state, unknown = held(i, permit(owner, 1, limit))
  if unknown then
    return nil, unknown
  end
  -- An owner may have permits and stand in the queue if two of its requests were served late.
  if #rest > 36 then
    redis.pcall('zrem', queue, owner .. rest, owner .. string.rep('-', 36) .. rest:sub(37))
  end
  if state ~= 'OWNED' then
    -- A claim that gives up may have held others back.
    if not other_kind(KEYS[i], PERMIT, END) then
      end_leases(KEYS[i])
      settle(KEYS[i], queue, ARGV[1])
    end
    return state
  end
  local members = {}
  for number = 1, count do
    members[number] = permit(owner, number, limit)
  end
  redis.call('zrem', KEYS[i], unpack(members))
  time = tonumber(time)
  if time > 0 then
    -- Another name, so that no renewal in flight extends the hold.
    give(KEYS[i], 'kept:' .. owner, count, limit, time)
    local unsent = tell_first(queue, ARGV[1])
    return unsent and {'UNPUBLISHED', unsent} or {'KEPT', 0}
  end
  end_leases(KEYS[i])
  local admitted, unsent = settle(KEYS[i], queue, ARGV[1])
  if unsent then
    return {'UNPUBLISHED', unsent}
  end
  return (admitted > 0 or redis.pcall('exists', queue) == 1) and 1 or 0
end
