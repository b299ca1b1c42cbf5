-- Who has a lock, in any layout.
-- KEYS[1] the lock   ARGV[1] the key of its owner in the layout `Timestamp`, which is in the same slot. Not among
-- the keys, because the users of other layouts may not read it.
-- Replies: what names the holder, or one of the holders; nothing if there is none. For a string, its beginning, and the
-- beginning of the note of its owner if it is a time
local kind = redis.call('type', KEYS[1]).ok
if kind == 'string' then
  local value = redis.call('getrange', KEYS[1], 0, 63)
  local note = value:match('^%d+%.?%d*$') and redis.pcall('getrange', ARGV[1], 0, 127)
  return {value, type(note) == 'string' and note or ''}
elseif kind == 'hash' and redis.call('hlen', KEYS[1]) < 10 then
  return redis.call('hkeys', KEYS[1])[1]
elseif kind == 'zset' then
  -- A counted lock. The hold that ends last is the least likely to have ended.
  local last = redis.call('zrange', KEYS[1], -1, -1)[1]
  return last ~= 'taken' and last
end
