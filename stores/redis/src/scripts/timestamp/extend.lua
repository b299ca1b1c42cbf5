
-- Extends lock i to `lease` ms, unless it lasts longer. Fails if the server is out of memory.
local function extend(i, owner, lease)
  if tonumber(redis.call('get', KEYS[2 * i - 1])) < now + lease then
    write(i, owner, lease)
    -- The connection may track keys that it reads, but none that it has changed since.
    redis.call('pttl', KEYS[2 * i - 1])
  end
end
