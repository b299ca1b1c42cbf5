
-- Leaves lock i to expire after so many ms, under another owner's name, so that no renewal that is still on its way
-- extends it. Out of memory it keeps its time, has no owner, and is gone before that.
local function keep(i, owner, time)
  local value = string.format('%.0f', now + time)
  if redis.pcall('set', KEYS[2 * i], 'kept:' .. owner .. ':' .. value, 'px', time + 60000).err then
    redis.call('del', KEYS[2 * i])
    redis.call('pexpire', KEYS[2 * i - 1], time)
  else
    redis.call('set', KEYS[2 * i - 1], value, 'px', time + 60000)
  end
end
