-- Fast path of a release: one permit, the key need not stay taken, and nobody waits. It comes first, so
-- that no function is created for it. A permit whose lease has ended is released like one that has not:
-- nobody else has had it since.
-- KEYS and ARGV as for release.lua, for one semaphore
if tonumber(ARGV[4]) <= 0 and redis.pcall('exists', KEYS[2] or ARGV[5]) == 0 then
  local limit = ARGV[3]:match('p1/(%d+)/')
  if limit and redis.pcall('zrem', KEYS[1], ARGV[2] .. '/1/' .. limit) == 1 then
    return 0
  end
end

