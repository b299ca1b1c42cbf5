
-- Releases several locks. An error of one does not affect the others.
-- Replies (`decode::released_all`), for each lock:
--   FAILED, error       its release has failed with this error
--   otherwise           the reply of release.lua
local replies = {}
for i = 1, (#ARGV - 1) / 3 do
  local done, reply, unknown = pcall(release, i, ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
  local failure = unknown or not done and reply
  replies[i] = failure and {'FAILED', failure.err or failure} or reply
end
return replies
