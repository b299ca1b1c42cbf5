-- The queue of a read-write lock is that of a plain lock (see transfer.lua), with `r` or `w` before the
-- lease in an entry, and 4e15 more than the time in the ticket of a reader. Readers and writers take
-- turns: when a writer ends, all readers that wait get the lock, and when the last of them ends, the
-- first writer. A reader that comes while a writer waits waits behind it. So a reader waits for one
-- writer at most, and a writer for those before it, with one turn of readers between two of them.
-- Source: B. B. Brandenburg and J. H. Anderson, "Spin-based reader-writer synchronization for
-- multiprocessor real-time systems", Real-Time Systems 46 (2010): phase-fair locks.
local READERS = 4e15

-- Ends the leases that are over. Returns whether a writer had one.
local function end_leases(key)
  redis.call('zremrangebyscore', key, score(READER), score(READER + now))
  return redis.call('zremrangebyscore', key, score(WRITER), score(WRITER + now)) > 0
end

-- Takes a claim out of the queue and gives it the lock if its client can be reached. Returns whether it
-- has the lock, and the error if the message could not be sent.
local function admit(key, queue, channels, entry, ticket)
  redis.call('zrem', queue, entry)
  local mode, lease = entry:sub(69, 69), tonumber(entry:sub(70))
  if not lease or mode ~= 'r' and mode ~= 'w' then
    return false
  end
  local owner, reached, unsent = entry:sub(1, 32), true, nil
  -- It may have got the lock by an attempt.
  if redis.call('zscore', key, owner) then
    return false
  end
  if entry:byte(33) ~= 45 then
    local message = owner .. ' ' .. score(ticket) .. ' ' .. lease
    reached, unsent = tell(channels .. entry:sub(33, 68), message)
  end
  if reached then
    redis.call('zadd', key, score((mode == 'w' and WRITER or READER) + now + lease), owner)
    last_for(key, lease)
  end
  return reached, unsent
end

-- How many claims come before that of a reader, of all that are `ahead` in the queue: a reader waits for
-- one writer only.
local function readers_ahead(queue, ticket, ahead)
  return math.min(ahead, redis.call('zcount', queue, score(READERS), '(' .. ticket) + 1)
end

-- The first writer that waits and whose client can be reached, and its ticket.
local function first_writer(queue, channels)
  for _ = 1, 1000 do
    local first = redis.pcall('zrange', queue, 0, 0, 'withscores')
    if first.err or not first[1] or tonumber(first[2]) >= READERS then
      return nil
    end
    if first[1]:sub(69, 69) == 'w' and not is_gone(channels, first[1]) then
      return first[1], tonumber(first[2])
    end
    redis.call('zrem', queue, first[1])
  end
end

-- Gives the lock to the claims whose turn it is; after a writer, that is the turn of the readers.
-- Returns how many claims got it, and an error if a message could not be sent.
local function settle(key, queue, channels, after_writer)
  if not has_claims(queue) then
    return 0
  end
  local last = redis.call('zrevrange', key, 0, 0, 'withscores')[2]
  if last and tonumber(last) >= WRITER then
    return 0
  end
  local writer, ticket = first_writer(queue, channels)
  -- The readers that came before the first writer do not wait for it.
  local before = (after_writer or not writer) and GAPS or READERS + ticket
  local readers =
    redis.call('zrangebyscore', queue, score(READERS), score(before), 'withscores', 'limit', 0, 1000)
  local admitted, unsent = 0, nil
  for i = 1, #readers, 2 do
    local got, error = admit(key, queue, channels, readers[i], readers[i + 1])
    admitted, unsent = admitted + (got and 1 or 0), unsent or error
  end
  if writer and admitted == 0 and redis.call('exists', key) == 0 then
    local got, error = admit(key, queue, channels, writer, ticket)
    return got and 1 or 0, error
  end
  return admitted, unsent
end

