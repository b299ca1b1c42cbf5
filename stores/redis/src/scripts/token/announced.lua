
-- What the holder of a lock has announced.
-- KEYS[1] the lock   KEYS[2] the announcement
-- Replies (`record_replies::announced`):
--   NONE                nobody holds the lock, or the holder has announced nothing
--   ANNOUNCED, n, text  the lock expires in n ms
--   WRONGFORMAT, kind   the second key holds a value of this kind
--   an error            a key could not be read
local owner = redis.pcall('getrange', KEYS[1], 0, 32)
if type(owner) == 'table' and not owner.err:find('WRONGTYPE', 1, true) then
  return owner
end
local text, unread = announcement(KEYS[2])
if unread then
  return unread
end
if type(owner) ~= 'string' or #owner ~= 32 or not text or text:sub(1, 32) ~= owner then
  return 'NONE'
end
return {'ANNOUNCED', redis.call('pttl', KEYS[1]), text:sub(33)}
