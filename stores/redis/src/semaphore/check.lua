-- Checks semaphores that claims wait for. Changes nothing but the expiry of the queues.
-- KEYS and ARGV as for read_write/check.lua
-- Replies (`decode::checked`): those of token/check.lua
local function check(i, entry, ticket, queue, channels)
  local count, limit = wanted(entry)
  local next = redis.pcall('zrange', KEYS[i], 0, 0, 'withscores')[2]
  local left = next and tonumber(next) >= PERMIT and ends(next) - now or 0
  if left <= 0 or redis.call('zscore', KEYS[i], permit(entry:sub(1, 32), 1, limit)) then
    return 'FREE'
  end
  local taken = redis.call('zcard', KEYS[i])
  -- Only a claim that does not poll holds this one back.
  for place = 0, 9 do
    local first, at = unpack(redis.pcall('zrange', queue, place, place, 'withscores'))
    if not first or tonumber(at) >= GAPS then
      break
    end
    local its_count, its_limit = wanted(first)
    if not its_count or taken + its_count <= its_limit or is_gone(channels, first) then
      return 'FREE'
    end
    if first:byte(33) ~= 45 then
      count = limit + 1
      break
    end
  end
  if taken + count <= limit then
    return 'FREE'
  end
  return place(queue, entry, ticket, left)
end

