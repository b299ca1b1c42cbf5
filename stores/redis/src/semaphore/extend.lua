-- Extends the lease of a holder of semaphore i, unless it lasts longer. `wanted` is the number of its
-- permits, their limit and the lease in ms.
local function extend(i, first, wanted)
  local count, limit, lease = wanted:match('^p(%d+)/(%d+)/(%d+)$')
  if ends(redis.call('zscore', KEYS[i], first)) < now + lease then
    last_for(KEYS[i], tonumber(lease))
    give(KEYS[i], first:sub(1, 32), tonumber(count), limit, lease)
  end
end

