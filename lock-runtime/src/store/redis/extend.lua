
-- Has lock i last for so many ms, if it does not anyway. PEXPIRE, because a SET would be refused when the server is out
-- of memory.
local function extend(i, _, lease)
  if redis.call('pttl', KEYS[i]) < tonumber(lease) then
    redis.call('pexpire', KEYS[i], lease)
  end
end
