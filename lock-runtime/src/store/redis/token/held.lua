-- `Token`: lock i is KEYS[i], a string: its owner's token.

-- Whether this owner has lock i: 1, it has; 0, the lock is gone; -1, it is somebody else's, or no lock. Any error but
-- one about the type of the key means that nobody knows, and is the second result.
local function held(i, owner)
  local value = redis.pcall('get', KEYS[i])
  if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
    return nil, value
  end
  return value == owner and 1 or value and -1 or 0
end
