
-- Has lock i expire after so many ms, for this owner. The key stays for a minute more, so that those who wait find one
-- that is over: one that vanishes between their GET and their GETSET would be nobody's for a lease of theirs.
local function write(i, owner, lease)
  local value = string.format('%.0f', now + lease)
  redis.call('set', KEYS[2 * i], owner .. ':' .. value, 'px', lease + 60000)
  redis.call('set', KEYS[2 * i - 1], value, 'px', lease + 60000)
end
