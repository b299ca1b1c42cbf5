-- What the holder of a lock has announced.
-- KEYS[1] the lock   KEYS[2] the announcement
-- Replies (`decode::announced`):
--   NONE                nobody holds the lock, or the holder has announced nothing
--   ANNOUNCED, n, text  the lock expires in n ms
--   an error            a key could not be read
local owner, text = redis.pcall('getrange', KEYS[1], 0, 32), redis.pcall('get', KEYS[2])
for _, value in ipairs({owner, text}) do
  if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
    return value
  end
end
if type(owner) ~= 'string' or #owner ~= 32 or type(text) ~= 'string' or text:sub(1, 32) ~= owner then
  return 'NONE'
end
return {'ANNOUNCED', redis.call('pttl', KEYS[1]), text:sub(33)}
