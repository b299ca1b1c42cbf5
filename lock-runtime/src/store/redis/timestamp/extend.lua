
-- Extends lock i to `lease` ms, unless it lasts longer. Fails if the server is out of memory.
local function extend(i, owner, lease)
  if tonumber(redis.call('get', KEYS[2 * i - 1])) < now + lease then
    write(i, owner, lease)
  end
end
