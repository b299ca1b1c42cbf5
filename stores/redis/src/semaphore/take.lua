-- Fast path of an attempt: there are enough permits, no lease has ended, and nobody waits. It comes first,
-- so that no function is created for it.
-- KEYS, ARGV and replies as for acquire.lua; the members and scores are those of held.lua
local queue = KEYS[2] or ARGV[5]
local taken = redis.pcall('exists', KEYS[1], queue)
if taken == 0 or taken == 1 and redis.pcall('exists', queue) == 0 then
  local count, limit = ARGV[7]:match('^p(%d+)/(%d+)/$')
  local first, rest = ARGV[1] .. '/1/' .. limit, 0
  local time = redis.call('time')
  local now = 3e13 + 1000 * time[1] + math.floor(time[2] / 1000)
  local held, is_simple = 0, true
  if taken == 1 then
    held, rest = redis.pcall('zcard', KEYS[1]), redis.call('pttl', KEYS[1])
    -- The key may hold something else, and a holder may repeat its request.
    is_simple = type(held) == 'number'
      and redis.call('zcount', KEYS[1], now + 1, 4e13) == held
      and not redis.call('zscore', KEYS[1], first)
  end
  if is_simple and held + count <= tonumber(limit) then
    if count == '1' then
      redis.call('zadd', KEYS[1], now + ARGV[2], first)
    else
      local permits = {}
      for number = 1, tonumber(count) do
        permits[2 * number - 1] = now + ARGV[2]
        permits[2 * number] = ARGV[1] .. '/' .. number .. '/' .. limit
      end
      redis.call('zadd', KEYS[1], unpack(permits))
    end
    redis.call('pexpire', KEYS[1], math.max(rest, ARGV[2] + 1000))
    return 'GRANTED'
  end
end

