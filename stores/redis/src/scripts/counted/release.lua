
-- Ends the hold of an owner of lock i, and gives its shares to the claims whose turn it is then. If the lock has to stay
-- taken for `time` ms, the hold ends after that time instead, and the first claim is told, because it would sleep until the
-- end of the lease. The owner leaves the queue in any case.
-- KEYS and ARGV as for token/release.lua, but the rest of the entry always has `s<shares>/<capacity>/`
-- Replies (`decode::released`): those of token/release.lua
-- The second result of the function is an error that leaves the outcome unknown.
local function release(i, owner, rest, time, queue)
  local wanted = rest:match('s%d+/%d+/')
  local state, unknown = held(i, owner, wanted)
  if unknown then
    return nil, unknown
  end
  -- An owner may have shares and stand in the queue if two of its requests were served late.
  if #rest > 36 then
    redis.pcall('zrem', queue, owner .. rest, owner .. string.rep('-', 36) .. rest:sub(37))
  end
  if state ~= 'OWNED' then
    -- A claim that gives up may have held others back.
    local _, capacity = asked(wanted)
    if not other_kind(KEYS[i], capacity) then
      end_leases(KEYS[i])
      settle(KEYS[i], queue, ARGV[1])
      clear(KEYS[i])
    end
    return state
  end
  time = tonumber(time)
  if time > 0 then
    last_for(KEYS[i], time)
    -- Another name, so that no renewal in flight extends the hold. It may be there from a release before.
    local is_new = redis.call('zadd', KEYS[i], score(COUNTED + now + time), 'kept:' .. found) == 1
    if is_new then
      redis.call('zrem', KEYS[i], found)
    else
      remove(KEYS[i], found)
    end
    if redis.call('zcount', KEYS[i], score(COUNTED), '+inf') == 1 then
      redis.call('pexpire', KEYS[i], time)
    end
    local unsent = tell_first(queue, ARGV[1])
    return unsent and {'UNPUBLISHED', unsent} or {'KEPT', 0}
  end
  end_leases(KEYS[i])
  remove(KEYS[i], found)
  local admitted, unsent = settle(KEYS[i], queue, ARGV[1])
  clear(KEYS[i])
  if unsent then
    return {'UNPUBLISHED', unsent}
  end
  return (admitted > 0 or redis.pcall('exists', queue) == 1) and 1 or 0
end
