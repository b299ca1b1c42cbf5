-- Checks read-write locks that claims wait for. Changes nothing but the expiry of the queues.
-- KEYS the keys of the locks, then the queues unless the server is a node of a cluster
-- ARGV for each lock: the entry of the claim in the queue, its ticket or nothing if it does not stand in
-- the queue, the queue if it is not among the keys, the prefix of the channels of clients
-- Replies (`decode::checked`): those of token/check.lua
local function check(i, entry, ticket, queue, channels)
  local last = redis.pcall('zrevrange', KEYS[i], 0, 0, 'withscores')[2]
  local left = last and tonumber(last) >= READER and ends(last) - now or 0
  if left <= 0 or redis.call('zscore', KEYS[i], entry:sub(1, 32)) then
    return 'FREE'
  end
  local is_reader = entry:sub(69, 69) == 'r'
  if is_reader and tonumber(last) < WRITER then
    -- Only a writer that waits holds it back.
    local first = redis.pcall('zrange', queue, 0, 0, 'withscores')
    if not first[2] or tonumber(first[2]) >= READERS or is_gone(channels, first[1]) then
      return 'FREE'
    end
  end
  local reply = place(queue, entry, ticket, left)
  if is_reader and reply[1] == 'QUEUED' then
    reply[3] = readers_ahead(queue, ticket, reply[3])
  end
  return reply
end

