-- What a key holds that is not what the caller expects: the type of its value, or the kind of lock if the
-- value shows it; see counted/shares.lua.
local function kind_of(key)
  local kind = redis.call('type', key).ok
  if kind == 'zset' then
    local first = redis.pcall('zrange', key, 0, 1)
    if first[1] == 'taken' and first[2] then
      return first[2]:match('/10000000000$') and 'read-write lock' or 'semaphore'
    end
  elseif kind == 'hash' then
    -- Without the permission for it, the type is all that is known.
    local mode = redis.pcall('hmget', key, 'mode')
    return mode[1] and 'Redisson read-write lock' or kind
  end
  return kind
end

