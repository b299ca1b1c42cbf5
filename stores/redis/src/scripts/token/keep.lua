
-- Lets lock i expire after `time` ms under another owner name, so that no renewal in flight extends
-- it. If the server is out of memory, the lock keeps its owner name.
local function keep(i, owner, time)
  local renamed = redis.pcall('set', KEYS[i], 'kept:' .. owner, 'px', time)
  if renamed.err then
    redis.call('pexpire', KEYS[i], time)
  end
end
