
-- Checks counted locks that claims wait for. Changes nothing but the expiry of the queues.
-- KEYS the keys of the locks, then the queues unless the server is a node of a cluster
-- ARGV for each lock: the entry of the claim in the queue, its ticket or nothing if it does not stand in the queue, the
-- queue if it is not among the keys, the prefix of the channels of clients
-- Replies (`decode::checked`): those of token/check.lua
local function check(i, entry, ticket, queue, channels)
  local shares, capacity = wanted(entry)
  local first = redis.pcall('zrange', KEYS[i], 0, 1, 'withscores')
  local left = first[1] == 'taken' and first[4] and ends(first[4]) - now or 0
  local _, own = hold_of(KEYS[i], entry:sub(1, 32), score(shares), capacity)
  if left <= 0 or own then
    return 'FREE'
  end
  -- Only a claim that does not poll holds this one back.
  local is_held_back = false
  for place = 0, 9 do
    local other, at = unpack(redis.pcall('zrange', queue, place, place, 'withscores'))
    if not other or tonumber(at) >= GAPS then
      break
    end
    local its_shares, its_capacity = wanted(other)
    if not its_shares or first[2] + its_shares <= tonumber(its_capacity) or is_gone(channels, other) then
      return 'FREE'
    end
    if other:byte(33) ~= 45 then
      is_held_back = true
      break
    end
  end
  if not is_held_back and first[2] + shares <= tonumber(capacity) then
    return 'FREE'
  end
  return place(queue, entry, ticket, left)
end
