
-- Has lock i last for so many ms, if it does not anyway. Refused when the server is out of memory.
local function extend(i, owner, lease)
  if tonumber(redis.call('get', KEYS[2 * i - 1])) < now + lease then
    write(i, owner, lease)
  end
end
