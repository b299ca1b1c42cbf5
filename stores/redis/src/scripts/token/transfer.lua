-- The queue of a lock: a sorted set of the claims that wait for it, by ticket. A ticket is the time
-- in µs at which the claim came. An entry is the owner (32 characters), the id of the client or
-- dashes if the client hears no messages (36 characters), and the lease in ms that a transfer gives
-- to the owner. A client has a channel of its own; a message has the owner, the ticket and the
-- lease. With the ticket 0, the client makes an attempt after that many ms instead. The entry `gap`
-- comes last: its score is 8e15 and the time in ms until which no claim gets the free lock.

-- Gives a lock to the first claim in its queue whose client can be reached. Returns its owner,
-- or nothing if there is none, and the error if the message could not be sent. After very many
-- clients in vain, the next claims find out by themselves that the lock is free.
local function transfer(key, queue, channels)
  for _ = 1, 1000 do
    local first = redis.pcall('zpopmin', queue)
    if first.err or not first[1] then
      return nil
    end
    local owner, client, lease = first[1]:sub(1, 32), first[1]:sub(33, 68), first[1]:sub(69)
    if #owner == 32 and tonumber(lease) then
      local reached, unsent = true, nil
      if client:byte() ~= 45 then
        local ticket = string.format('%.0f', first[2])
        reached, unsent = tell(channels .. client, owner .. ' ' .. ticket .. ' ' .. lease)
      end
      if reached then
        redis.call('set', key, owner, 'px', lease)
        return owner, unsent
      end
    end
  end
end

