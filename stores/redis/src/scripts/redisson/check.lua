-- Checks locks that have waiters. Changes nothing.
-- KEYS the keys of the locks
-- Replies (`decode::checked`), for each lock:
--   BUSY, n             it expires in n ms, or never if n is -1
--   FREE                an attempt is worthwhile: the lock is free, or the key holds no lock
local replies = {}
for i = 1, #KEYS do
  local is_lock = redis.call('type', KEYS[i]).ok == 'hash'
  replies[i] = is_lock and {'BUSY', redis.call('pttl', KEYS[i])} or 'FREE'
end
return replies
