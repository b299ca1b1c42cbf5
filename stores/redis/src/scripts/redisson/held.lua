-- `Redisson`: lock i is KEYS[i], a hash from the name of its owner to the owner's hold count.

-- Whether `owner` has lock i. The first result is
--   OWNED               yes
--   GONE                no, the lock does not exist
--   TAKEN               no, it has another owner, or is no lock: a read-write lock of Redisson is
--                       granted although the lock has an owner, and adds the field `mode`
-- The second result is an error that leaves this unknown: any error but a wrong type.
local function held(i, owner)
  local has = redis.pcall('hexists', KEYS[i], owner)
  if type(has) == 'table' and not has.err:find('WRONGTYPE', 1, true) then
    return nil, has
  end
  if has == 1 then
    return redis.call('hexists', KEYS[i], 'mode') == 1 and 'TAKEN' or 'OWNED'
  end
  return redis.call('exists', KEYS[i]) == 1 and 'TAKEN' or 'GONE'
end
