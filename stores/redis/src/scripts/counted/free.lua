
-- Fast path of a release: the key need not stay taken, and nobody waits. It comes first, so that no function is created
-- for it. A hold whose lease has ended is released like one that has not: nobody whom it excludes has had the lock since.
-- KEYS and ARGV as for release.lua, for one lock
if tonumber(ARGV[4]) <= 0 and redis.pcall('exists', KEYS[2] or ARGV[5]) == 0 then
  local shares, capacity = ARGV[3]:match('s(%d+)/(%d+)/')
  if redis.pcall('zrem', KEYS[1], ARGV[2] .. '/' .. shares .. '/' .. capacity) == 1 then
    if redis.call('zadd', KEYS[1], 'incr', '-' .. shares, 'taken') == '0' then
      redis.call('del', KEYS[1])
    end
    return 0
  end
end
