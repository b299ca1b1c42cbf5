-- `Token`: lock i is KEYS[i], a string: the owner.

-- Whether `owner` has lock i. The first result is
--   OWNED               yes
--   GONE                no, the lock does not exist
--   TAKEN               no, it has another owner, or is no lock
-- The second result is an error that leaves this unknown: any error but a wrong type.
local function held(i, owner)
  local value = redis.pcall('get', KEYS[i])
  if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
    return nil, value
  end
  return value == owner and 'OWNED' or value and 'TAKEN' or 'GONE'
end
