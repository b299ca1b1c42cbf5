
-- Extends locks, each on its own, where their owners still have them; never shortens one.
-- KEYS the locks'   ARGV for each lock: owner, lease in ms
-- Replies: for each lock 1, extended; 0, it is gone; -1, it is somebody else's.
local replies = {}
for i = 1, #ARGV / 2 do
  local owner, lease = ARGV[2 * i - 1], ARGV[2 * i]
  local state, unknown = held(i, owner)
  if unknown then
    return unknown
  end
  if state == 1 then
    extend(i, owner, lease)
  end
  replies[i] = state
end
return replies
