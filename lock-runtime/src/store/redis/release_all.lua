
-- Each lock on its own.
-- Replies: for each lock as above; or FAILED and a text, the error.
local replies = {}
for i = 1, (#ARGV - 1) / 3 do
  local done, reply, unknown = pcall(release, i, ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
  local failure = unknown or not done and reply
  replies[i] = failure and {'FAILED', failure.err or failure} or reply
end
return replies
