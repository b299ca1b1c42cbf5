
-- Extends lock i to `lease` ms, unless it lasts longer. Uses PEXPIRE, because a server that is out
-- of memory rejects SET.
local function extend(i, _, lease)
  if redis.call('pttl', KEYS[i]) < tonumber(lease) then
    redis.call('pexpire', KEYS[i], lease)
    -- The connection may track keys that it reads, but none that it has changed since.
    redis.call('pttl', KEYS[i])
  end
end
