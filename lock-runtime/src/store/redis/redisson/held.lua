-- `Redisson`: lock i is KEYS[i], a hash of its owner's name and count.

-- Whether this owner has lock i: 1, it has; 0, the lock is gone; -1, it is somebody else's, or no lock. Any error but
-- one about the type of the key means that nobody knows, and is the second result.
local function held(i, owner)
  local has = redis.pcall('hexists', KEYS[i], owner)
  if type(has) == 'table' and not has.err:find('WRONGTYPE', 1, true) then
    return nil, has
  end
  if has == 1 then
    return 1
  end
  return redis.call('exists', KEYS[i]) == 1 and -1 or 0
end
