
-- Has lock i expire after so many ms, for this owner.
local function write(i, owner, lease)
  local value = string.format('%.0f', now + lease)
  redis.call('set', KEYS[2 * i], owner .. ':' .. value, 'px', lease)
  redis.call('set', KEYS[2 * i - 1], value, 'px', lease)
end
