-- Fast path of several releases: the owners have the locks, no key need stay taken, and nobody waits, so that a gap would be
-- for nobody. It comes first, so that no function is created for it. A node of a cluster is not told the queues in advance.
-- KEYS and ARGV as for release.lua
-- Replies 0 if it has freed all locks
local locks = (#ARGV - 1) / 4
local is_slow = #KEYS == locks or redis.pcall('exists', unpack(KEYS, locks + 1)) ~= 0
for i = 1, locks do
  is_slow = is_slow or tonumber(ARGV[4 * i]) > 0 or redis.pcall('get', KEYS[i]) ~= ARGV[4 * i - 2]
end
if not is_slow then
  redis.call('del', unpack(KEYS, 1, locks))
  return 0
end

