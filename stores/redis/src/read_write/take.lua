-- Fast path of an attempt: nobody has the lock, and nobody waits. It comes first, so that no function is
-- created for it.
-- KEYS, ARGV and replies as for acquire.lua; the scores are those of held.lua
if redis.pcall('exists', KEYS[1], KEYS[2] or ARGV[5]) == 0 then
  local time, mode = redis.call('time'), ARGV[7] == 'w' and 2e13 or 1e13
  local now = 1000 * time[1] + math.floor(time[2] / 1000)
  redis.call('zadd', KEYS[1], mode + now + ARGV[2], ARGV[1])
  redis.call('pexpire', KEYS[1], ARGV[2] + 1000)
  return 'GRANTED'
end

