-- Fast path of an attempt: nobody has permits, and nobody waits. It comes first, so that no function is
-- created for it.
-- KEYS, ARGV and replies as for acquire.lua; the members and scores are those of held.lua
if redis.pcall('exists', KEYS[1], KEYS[2] or ARGV[5]) == 0 then
  local time, count, limit = redis.call('time'), ARGV[7]:match('^p(%d+)/(%d+)/$')
  local till = 3e13 + 1000 * time[1] + math.floor(time[2] / 1000) + ARGV[2]
  local permits = {}
  for number = 1, tonumber(count) do
    permits[2 * number - 1] = till
    permits[2 * number] = ARGV[1] .. '/' .. number .. '/' .. limit
  end
  redis.call('zadd', KEYS[1], unpack(permits))
  redis.call('pexpire', KEYS[1], ARGV[2] + 1000)
  return 'GRANTED'
end

