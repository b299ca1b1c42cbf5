-- Extends the lease of a holder of lock i, unless it lasts longer. `wanted` is the mode and the lease in
-- ms. Returns READER if the holder is a reader and `wanted` is the lease of a writer.
local function extend(i, owner, wanted)
  local own, lease = tonumber(redis.call('zscore', KEYS[i], owner)), tonumber(wanted:sub(2))
  if ends(own) < now + lease then
    last_for(KEYS[i], lease)
    redis.call('zadd', KEYS[i], score(own - ends(own) + now + lease), owner)
  end
  return own < WRITER and wanted:sub(1, 1) == 'w' and 'READER'
end

