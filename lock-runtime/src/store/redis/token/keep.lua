
-- Leaves lock i to expire after so many ms, under another name, which no renewal that is still on its way extends. Out
-- of memory it has to keep its own.
local function keep(i, owner, time)
  local renamed = redis.pcall('set', KEYS[i], 'kept:' .. owner, 'px', time)
  if renamed.err then
    redis.call('pexpire', KEYS[i], time)
  end
end
