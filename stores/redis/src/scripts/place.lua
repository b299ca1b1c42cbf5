-- The result of a check of a lock that is busy for `left` ms: whether a claim, which waits with this ticket
-- unless it is empty, still has its place in the queue.
local function place(queue, entry, ticket, left)
  if ticket == '' then
    return {'BUSY', left}
  end
  local score = redis.pcall('zscore', queue, entry)
  if type(score) ~= 'string' or tonumber(score) ~= tonumber(ticket) then
    return 'FREE'
  end
  local ahead = redis.call('zrank', queue, entry)
  if ahead < 10 then
    redis.pcall('pexpire', queue, 60000)
  end
  return {'QUEUED', left, ahead}
end

