
-- Extends the locks that their owners still have. Never shortens a lease.
-- KEYS the keys of the locks
-- ARGV for each lock: owner, lease in ms
-- Replies (`decode::renewed`): an error if the owner of a lock could not be read, otherwise for
-- each lock:
--   EXTENDED            it is extended, or lasts longer already
--   READER              the same, but its owner is a reader and not a writer
--   GONE                it does not exist
--   TAKEN               it has another owner
local replies = {}
for i = 1, #ARGV / 2 do
  local owner, lease = ARGV[2 * i - 1], ARGV[2 * i]
  local state, unknown = held(i, owner, lease)
  if unknown then
    return unknown
  end
  if state == 'OWNED' then
    state = extend(i, owner, lease) or 'EXTENDED'
  end
  replies[i] = state
end
return replies
