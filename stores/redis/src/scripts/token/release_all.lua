
-- Releases several locks. An error of one does not affect the others.
-- Replies (`decode::released_all`): 0 (see free_all.lua), or for each lock:
--   FAILED, error       its release has failed with this error
--   otherwise           the reply of release.lua
local replies = {}
local locks = (#ARGV - 1) / 4
for i = 1, locks do
  local owner, rest, time, queue = unpack(ARGV, 4 * i - 2, 4 * i + 1)
  local done, reply, unknown = pcall(release, i, owner, rest, time, KEYS[locks + i] or queue)
  local failure = unknown or not done and reply
  replies[i] = failure and {'FAILED', failure.err or failure} or reply
end
return replies
