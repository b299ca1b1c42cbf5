-- Fast path of several releases: the owners have the locks, and no key need stay taken. It comes first, so that no
-- function is created for it.
-- KEYS, ARGV and replies as for release_all.lua
local is_slow = false
for i = 1, #KEYS do
  is_slow = is_slow or ARGV[3 * i] ~= '0' or redis.pcall('get', KEYS[i]) ~= ARGV[3 * i - 2]
end
if not is_slow then
  redis.call('del', unpack(KEYS))
  local replies = {}
  for i = 1, #KEYS do
    local subscribers = redis.pcall('publish', ARGV[3 * i - 1], ARGV[#ARGV])
    replies[i] = type(subscribers) == 'table' and {'UNPUBLISHED', subscribers.err} or subscribers
  end
  return replies
end

