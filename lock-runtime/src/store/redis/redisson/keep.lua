
-- Leaves lock i to expire after so many ms, under another name, which no renewal that is still on its way extends. Out
-- of memory it has to keep its own.
local function keep(i, owner, time)
  local renamed = redis.pcall('hset', KEYS[i], 'kept:' .. owner, 1)
  if type(renamed) ~= 'table' then
    redis.call('hdel', KEYS[i], owner)
  end
  redis.call('pexpire', KEYS[i], time)
end
