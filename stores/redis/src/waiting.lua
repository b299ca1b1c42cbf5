-- The queue of a lock that may have several holders: that of a plain lock (see transfer.lua), with more
-- in an entry before the lease.
local GAPS = 8e15

-- Whether a queue has claims. A gap is for clients that know no queue, which have no such locks. The queue
-- may be a value of another type.
local function has_claims(queue)
  local gaps = redis.pcall('zremrangebyscore', queue, score(GAPS), '+inf')
  return type(gaps) ~= 'table' and redis.call('exists', queue) == 1
end

-- Whether the client of an entry in the queue is gone.
local function is_gone(channels, entry)
  return entry:byte(33) ~= 45 and not is_heard(channels .. entry:sub(33, 68))
end

-- Lets the first claim in a queue whose client can be reached make an attempt. Returns the error if the message could not be sent.
local function tell_first(queue, channels)
  local claims = redis.pcall('zrange', queue, 0, 99)
  for _, claim in ipairs(claims.err and {} or claims) do
    local message = claim:sub(1, 32) .. ' 0 0'
    if claim:byte(33) == 45 then
      return nil
    end
    local is_told, unsent = tell(channels .. claim:sub(33, 68), message)
    if is_told then
      return unsent
    end
  end
end

