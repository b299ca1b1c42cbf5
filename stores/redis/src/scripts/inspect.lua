-- What a key holds that may be a lock, in any layout.
-- KEYS[1] the lock   ARGV[1] the key of its owner in the layout `Timestamp`   ARGV[2] its queue; both are in the slot
-- of the lock, and not among the keys, because the users of some layouts may not read them
-- Replies: the type; if there is a value, also the remaining time in ms (below 0 without one), the server's time in
-- ms, the number of claims in the queue, and then
--   string              the first 257 bytes of the value, and the beginning of the note of its owner if it is a time
--   hash                the fields, if there are fewer than 10
--   zset                the first 1,002 members, each with its score
local kind = redis.call('type', KEYS[1]).ok
if kind == 'none' then
  return {kind}
end
local time = redis.call('time')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local claims = redis.pcall('zcount', ARGV[2], '-inf', '(8000000000000000')
local reply = {kind, redis.call('pttl', KEYS[1]), now, type(claims) == 'number' and claims or 0}
local contents = {}
if kind == 'string' then
  local value = redis.call('getrange', KEYS[1], 0, 256)
  local note = value:match('^%d+%.?%d*$') and redis.pcall('getrange', ARGV[1], 0, 127)
  contents = {value, type(note) == 'string' and note or ''}
elseif kind == 'hash' and redis.call('hlen', KEYS[1]) < 10 then
  contents = redis.call('hkeys', KEYS[1])
elseif kind == 'zset' then
  contents = redis.call('zrange', KEYS[1], 0, 1001, 'withscores')
end
for _, value in ipairs(contents) do
  reply[#reply + 1] = value
end
return reply
