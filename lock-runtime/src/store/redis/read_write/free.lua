-- Fast path of a release: the key need not stay taken, and nobody waits. It comes first, so that no
-- function is created for it.
-- KEYS and ARGV as for release.lua, for one lock
if tonumber(ARGV[4] or 0) <= 0 and redis.pcall('exists', KEYS[2] or ARGV[5]) == 0 then
  local own = redis.pcall('zscore', KEYS[1], ARGV[2])
  if type(own) == 'string' then
    local time = redis.call('time')
    redis.call('zrem', KEYS[1], ARGV[2])
    return own % 1e13 > 1000 * time[1] + time[2] / 1000 and 0 or 'GONE'
  end
end

