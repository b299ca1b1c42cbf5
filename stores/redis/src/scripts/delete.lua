-- Deletes a lock of another library if it still has this value.
-- KEYS[1] the lock   ARGV[1] the value
-- Replies: 0 if it is free, or GONE or TAKEN, as those of a release
local value = redis.call('get', KEYS[1])
if value == ARGV[1] then
  redis.call('del', KEYS[1])
  return 0
end
return value and 'TAKEN' or 'GONE'
