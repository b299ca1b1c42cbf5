-- Fast path of a release: one permit, the key need not stay taken, and nobody waits. It comes first, so
-- that no function is created for it.
-- KEYS and ARGV as for release.lua, for one semaphore
if tonumber(ARGV[4]) <= 0 and redis.pcall('exists', KEYS[2] or ARGV[5]) == 0 then
  local limit = ARGV[3]:match('p1/(%d+)/')
  local permit = limit and ARGV[2] .. '/1/' .. limit
  local own = permit and redis.pcall('zscore', KEYS[1], permit)
  if type(own) == 'string' then
    local time = redis.call('time')
    redis.call('zrem', KEYS[1], permit)
    return own % 1e13 > 1000 * time[1] + time[2] / 1000 and 0 or 'GONE'
  end
end

