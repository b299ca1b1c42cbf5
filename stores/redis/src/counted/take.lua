
-- Fast path of an attempt: the shares fit, no lease has ended, and nobody waits. It comes first, so that no function is
-- created for it.
-- KEYS, ARGV and replies as for acquire.lua; the members and scores are those of shares.lua
local queue = KEYS[2] or ARGV[5]
local exists = redis.pcall('exists', KEYS[1], queue)
if exists == 0 or exists == 1 and redis.pcall('exists', queue) == 0 then
  local shares, capacity = ARGV[7]:match('^s(%d+)/(%d+)/$')
  local name, time = ARGV[1] .. '/' .. shares .. '/' .. capacity, redis.call('time')
  local now = 5e13 + 1000 * time[1] + math.floor(time[2] / 1000)
  if exists == 0 then
    redis.call('zadd', KEYS[1], shares, 'taken', now + ARGV[2], name)
    redis.call('pexpire', KEYS[1], ARGV[2])
    return 'GRANTED'
  end
  local first = redis.pcall('zrange', KEYS[1], 0, 1, 'withscores')
  -- The key may hold something else, and a holder may repeat its request.
  if first[1] == 'taken' and first[4] and tonumber(first[4]) > now
    and (first[3]:match('/(%d+)$') == '10000000000') == (capacity == '10000000000')
    and first[2] + shares <= tonumber(capacity) and not redis.call('zscore', KEYS[1], name) then
    redis.call('zadd', KEYS[1], now + ARGV[2], name)
    redis.call('zincrby', KEYS[1], shares, 'taken')
    redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[2]))
    return 'GRANTED'
  end
end
