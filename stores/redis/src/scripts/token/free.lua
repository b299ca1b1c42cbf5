-- Fast path of a release: the owner has the lock, the key need not stay taken, and nobody waits, or
-- the first claim in the queue can be reached (see transfer.lua) and gets the lock without a gap. It
-- comes first, so that no function is created for it.
-- KEYS and ARGV as for release.lua, for one lock
local time = tonumber(ARGV[4] or '0')
if time <= 0 and redis.pcall('get', KEYS[1]) == ARGV[2] then
  local first = redis.pcall('zpopmin', KEYS[2] or ARGV[5])
  if not first[1] then
    redis.call('del', KEYS[1])
    return 0
  end
  local owner, client, lease = first[1]:sub(1, 32), first[1]:sub(33, 68), first[1]:sub(69)
  local count = redis.pcall('pubsub', 'numsub', ARGV[1] .. client)
  if time == 0 and tonumber(lease) and owner ~= ARGV[2] and (count[2] or 0) > 0 then
    local message = owner .. ' ' .. string.format('%.0f', first[2]) .. ' ' .. lease
    local sent = redis.pcall('publish', ARGV[1] .. client, message)
    redis.call('set', KEYS[1], owner, 'px', lease)
    return type(sent) == 'table' and {'UNPUBLISHED', sent.err} or 1
  end
  -- Without its only claim, the queue had no expiry.
  redis.call('zadd', KEYS[2] or ARGV[5], first[2], first[1])
  redis.call('pexpire', KEYS[2] or ARGV[5], 60000)
end

