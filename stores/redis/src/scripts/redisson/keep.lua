
-- Lets lock i expire after `time` ms under another owner name, so that no renewal in flight extends
-- it. If the server is out of memory, the lock keeps its owner name.
local function keep(i, owner, time)
  local renamed = redis.pcall('hset', KEYS[i], 'kept:' .. owner, 1)
  if type(renamed) ~= 'table' then
    redis.call('hdel', KEYS[i], owner)
  end
  redis.call('pexpire', KEYS[i], time)
end
