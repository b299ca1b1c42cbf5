
-- Extends the lease of a holder of lock i, unless it lasts longer. `wanted` is what it has asked for, and the lease in ms.
-- Returns READER if the holder is a reader and `wanted` is the lease of a writer.
local function extend(i, _, wanted)
  local shares, capacity, lease = wanted:match('^s(%d+)/(%d+)/(%d+)$')
  if ends(found_score) < now + lease then
    last_for(KEYS[i], tonumber(lease))
    redis.call('zadd', KEYS[i], score(COUNTED + now + lease), found)
  end
  return capacity == ALL and shares == ALL and shares_of(found) == 1 and 'READER'
end
