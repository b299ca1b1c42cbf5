
-- Announces who holds a lock.
-- KEYS[1] the lock   KEYS[2] the announcement
-- ARGV[1] owner   ARGV[2] what is announced   ARGV[3] for how many ms it is kept
-- Replies (`record_replies::announce`):
--   ANNOUNCED           it counts as long as the owner has the lock
--   GONE                the lock does not exist
--   TAKEN               it has another owner
--   WRONGFORMAT, kind   the second key holds a value of this kind, which was not changed
--   an error            a key could not be read
local _, unread = announcement(KEYS[2])
if unread then
  return unread
end
redis.call('set', KEYS[2], ARGV[1] .. ARGV[2], 'px', ARGV[3])
return 'ANNOUNCED'
