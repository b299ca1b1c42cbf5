-- Checks each lock. ARGV and replies: see check.lua of the layout.
local replies = {}
for i = 1, #ARGV / 4 do
  local entry, ticket, queue, channels = unpack(ARGV, 4 * i - 3, 4 * i)
  replies[i] = check(i, entry, ticket, KEYS[#ARGV / 4 + i] or queue, channels)
end
return replies
