
-- Leaves lock i to expire after so many ms, without an owner, so that no renewal that is still on its way extends it. Out
-- of memory it keeps its time, and is gone before that.
local function keep(i, _, time)
  local key = KEYS[2 * i - 1]
  if redis.pcall('set', key, string.format('%.0f', now + time), 'px', time + 60000).err then
    redis.call('pexpire', key, time)
  end
  redis.call('del', KEYS[2 * i])
end
