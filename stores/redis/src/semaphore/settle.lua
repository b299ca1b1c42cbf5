-- An entry in the queue of a semaphore has `p<permits>/<limit>/` before the lease. The claims get their
-- permits in their order: the first one holds the others back until there are enough for it, so that claims
-- for few permits do not overtake one for many. Each claim counts by its own limit. A claim that polls holds
-- nobody back, because nobody would notice that it is gone.

-- What an entry asks for: how many permits, of which limit, for how many ms. Nothing if it is no claim.
local function wanted(entry)
  local count, limit, lease = entry:match('^p(%d+)/(%d+)/(%d+)$', 69)
  count, limit = tonumber(count), tonumber(limit)
  if count and count >= 1 and count <= math.min(limit, 1000) then
    return count, limit, tonumber(lease)
  end
end

-- Ends the leases that are over.
local function end_leases(key)
  redis.call('zremrangebyscore', key, score(PERMIT), score(PERMIT + now))
end

-- Gives permits to the claims whose turn it is. The claim of `own`, which makes an attempt, is not gone.
-- Returns how many claims got theirs, an error if a message could not be sent, and whether a claim that
-- waits holds the others back.
local function settle(key, queue, channels, own)
  if not has_claims(queue) then
    return 0
  end
  local taken, admitted, unsent, passed = redis.call('zcard', key), 0, nil, 0
  for _ = 1, 1000 do
    local first, ticket = unpack(redis.call('zrange', queue, passed, passed, 'withscores'))
    if not first then
      return admitted, unsent, false
    end
    local owner, count, limit, lease = first:sub(1, 32), wanted(first)
    local waits = count and (owner == own or not is_gone(channels, first))
    if waits and taken + count > limit then
      if first:byte(33) ~= 45 then
        return admitted, unsent, true
      end
      passed = passed + 1
      waits = false
    else
      redis.call('zrem', queue, first)
    end
    -- It may have got its permits by an attempt.
    if waits and not redis.call('zscore', key, permit(owner, 1, limit)) then
      local reached, failure = true, nil
      -- The reply tells the claim that makes the attempt.
      if first:byte(33) ~= 45 and owner ~= own then
        local message = owner .. ' ' .. score(ticket) .. ' ' .. lease
        reached, failure = tell(channels .. first:sub(33, 68), message)
      end
      if reached then
        give(key, owner, count, limit, lease)
        taken, admitted, unsent = taken + count, admitted + 1, unsent or failure
      end
    end
  end
  return admitted, unsent, true
end

