-- The channels without a client. A client may have had many claims.
local unheard = {}

-- Whether the client of a channel can be reached.
local function is_heard(channel)
  if unheard[channel] then
    return false
  end
  local count = redis.pcall('pubsub', 'numsub', channel)
  if not count.err and count[2] == 0 then
    unheard[channel] = true
    return false
  end
  return true
end

-- Sends a message to a client. The first result is whether the client can be reached. `PUBLISH`
-- cannot tell: its count has the subscribers of this server only, but the message goes to all nodes
-- of a cluster and to all replicas, so a client that was passed over could receive it. The second
-- result is an error if the message could not be sent; the client then finds out by itself.
local function tell(channel, message)
  if not is_heard(channel) then
    return false
  end
  local sent = redis.pcall('publish', channel, message)
  return true, type(sent) == 'table' and sent.err
end

