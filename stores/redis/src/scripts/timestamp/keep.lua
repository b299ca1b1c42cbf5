
-- Lets lock i expire after `time` ms under another owner name, so that no renewal in flight extends
-- it. If the server is out of memory, the lock keeps its value and loses its owner key, and its key
-- expires after `time` ms.
local function keep(i, owner, time)
  local value = string.format('%.0f', now + time)
  if redis.pcall('set', KEYS[2 * i], 'kept:' .. owner .. ':' .. value, 'px', time + 60000).err then
    redis.call('del', KEYS[2 * i])
    redis.call('pexpire', KEYS[2 * i - 1], time)
  else
    redis.call('set', KEYS[2 * i - 1], value, 'px', time + 60000)
  end
end
