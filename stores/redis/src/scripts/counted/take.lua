
-- Fast path of an attempt: the shares fit, no lease has ended, and nobody waits. It comes first, so that no function is
-- created for it.
-- KEYS, ARGV and replies as for acquire.lua; the members and scores are those of shares.lua
local queue = KEYS[2] or ARGV[5]
local exists = redis.pcall('exists', KEYS[1], queue)
if exists == 0 or exists == 1 and redis.pcall('exists', queue) == 0 then
  local shares, capacity = ARGV[7]:match('^s(%d+)/(%d+)/$')
  local name, time = ARGV[1] .. '/' .. shares .. '/' .. capacity, redis.call('time')
  local now = 5e13 + 1000 * time[1] + math.floor(time[2] / 1000)
  local total, lasts = shares, ARGV[2]
  if exists == 1 then
    local first = redis.pcall('zrange', KEYS[1], 0, 1, 'withscores')
    local its = first[1] == 'taken' and first[4] and tonumber(first[4]) > now and first[3]:match('/(%d+)$')
    -- The key may hold something else, and a holder may repeat its request.
    local is_simple = its and (its == '10000000000') == (capacity == '10000000000')
      and first[2] + shares <= tonumber(capacity) and not redis.call('zscore', KEYS[1], name)
    total = is_simple and first[2] + shares
    lasts = is_simple and math.max(redis.call('pttl', KEYS[1]), lasts)
  end
  if total then
    redis.call('zadd', KEYS[1], total, 'taken', now + ARGV[2], name)
    redis.call('pexpire', KEYS[1], lasts)
    return 'GRANTED'
  end
end
