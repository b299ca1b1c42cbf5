
-- Fast path of a release: the key need not stay taken, and nobody waits. It comes first, so that no function is created
-- for it. A hold whose lease has ended is released like one that has not: nobody whom it excludes has had the lock since.
-- KEYS and ARGV as for release.lua, for one lock
if tonumber(ARGV[4]) <= 0 and redis.pcall('exists', KEYS[2] or ARGV[5]) == 0 then
  local shares, capacity = ARGV[3]:match('s(%d+)/(%d+)/')
  if redis.pcall('zrem', KEYS[1], ARGV[2] .. '/' .. shares .. '/' .. capacity) == 1 then
    local first = redis.call('zrange', KEYS[1], 0, 1, 'withscores')
    if first[3] then
      redis.call('zadd', KEYS[1], first[2] - shares, 'taken')
    else
      redis.call('del', KEYS[1])
    end
    return 0
  end
end
