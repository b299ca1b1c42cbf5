-- Fast path of a release: the owner has the lock, and the key need not stay taken. It comes first, so that no
-- function is created for it.
-- KEYS and ARGV as for release.lua, for one lock
if ARGV[3] == '0' and redis.pcall('get', KEYS[1]) == ARGV[1] then
  redis.call('del', KEYS[1])
  local subscribers = redis.pcall('publish', ARGV[2], ARGV[4])
  return type(subscribers) == 'table' and {'UNPUBLISHED', subscribers.err} or subscribers
end

