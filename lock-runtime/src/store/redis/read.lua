-- What a key holds: its string; false, if there is none; a table, if it is of another type, which is then not ours. Any
-- other error means that nobody knows, and is the second result.
local function read(key)
  local value = redis.pcall('get', key)
  if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
    return nil, value
  end
  return value
end

