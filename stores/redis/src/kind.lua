-- What a key holds that is not what the caller expects: the type of its value, or the kind of lock if the
-- value shows it. The scores are those of held.lua of each layout.
local function kind_of(key)
  local kind = redis.call('type', key).ok
  if kind == 'zset' then
    local first = redis.pcall('zrange', key, 0, 0, 'withscores')
    local score = tonumber(first[2] or 0) or 0
    if score >= 1e13 and score < 4e13 then
      return score < 3e13 and 'read-write lock' or 'semaphore'
    end
  elseif kind == 'hash' then
    -- Without the permission for it, the type is all that is known.
    local mode = redis.pcall('hmget', key, 'mode')
    return mode[1] and 'Redisson read-write lock' or kind
  end
  return kind
end

