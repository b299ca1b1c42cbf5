
-- The queue of a counted lock is that of a plain lock (see token/transfer.lua), with `s<shares>/<capacity>/` before the
-- lease in an entry. The claims get their shares in the order in which they came: the first one holds the others back until
-- there are enough for it, so that claims for few shares do not overtake one for many. Each claim counts by its own
-- capacity. A claim that polls holds nobody back, because nobody would notice that it is gone.
local GAPS = 8e15

-- Whether a queue has claims. A gap is for clients that know no queue, which have no such locks. The queue may be a value
-- of another type.
local function has_claims(queue)
  local gaps = redis.pcall('zremrangebyscore', queue, score(GAPS), '+inf')
  return type(gaps) ~= 'table' and redis.pcall('exists', queue) == 1
end

-- Whether the client of an entry in the queue is gone.
local function is_gone(channels, entry)
  return entry:byte(33) ~= 45 and not is_heard(channels .. entry:sub(33, 68))
end

-- What an entry asks for: how many shares, of which capacity, for how many ms. Nothing if it is no claim.
local function wanted(entry)
  local shares, capacity, lease = entry:match('^s(%d+)/(%d+)/(%d%d?%d?%d?)$', 69)
  if shares and shares ~= '0' and tonumber(shares) <= tonumber(capacity) then
    return tonumber(shares), capacity, tonumber(lease)
  end
end

-- Lets the first claim in a queue whose client can be reached make an attempt. Returns the error if the message could not be
-- sent.
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

-- Gives shares to the claims whose turn it is. The claim of `own`, which makes an attempt, is not gone. Returns how many
-- claims got theirs, an error if a message could not be sent, and whether a claim that waits holds the others back.
local function settle(key, queue, channels, own)
  if not has_claims(queue) then
    return 0
  end
  local admitted, unsent, passed = 0, nil, 0
  for _ = 1, 1000 do
    -- In a slot that is being moved, the queue may be gone.
    local first, ticket = unpack(redis.pcall('zrange', queue, passed, passed, 'withscores'))
    if not first then
      return admitted, unsent, false
    end
    local owner, shares, capacity, lease = first:sub(1, 32), wanted(first)
    local waits = shares and (owner == own or not is_gone(channels, first))
    -- It may have got its shares by an attempt.
    if waits and select(2, hold_of(key, owner, score(shares), capacity)) then
      waits = false
    end
    if waits and taken(key) + shares > tonumber(capacity) then
      if first:byte(33) ~= 45 then
        return admitted, unsent, true
      end
      passed = passed + 1
    else
      redis.call('zrem', queue, first)
      local reached, failure = waits, nil
      -- The reply tells the claim that makes the attempt.
      if waits and first:byte(33) ~= 45 and owner ~= own then
        local message = owner .. ' ' .. score(ticket) .. ' ' .. lease
        reached, failure = tell(channels .. first:sub(33, 68), message)
      end
      if reached then
        give(key, owner .. '/' .. score(shares) .. '/' .. capacity, lease)
        admitted, unsent = admitted + 1, unsent or failure
      end
    end
  end
  return admitted, unsent, true
end
