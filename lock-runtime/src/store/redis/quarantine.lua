-- Tells for how long a server grants no locks because it may have lost some. The marker says which
-- process began the latest quarantine, and when.
-- KEYS[1] the marker
-- ARGV[1] the run id of the server, ARGV[2] the length of the quarantine in ms
-- Replies (`decode::quarantined`) with the ms that are left.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local process, since = (redis.call('get', KEYS[1]) or ''):match('^(%S+) (%d+)$')
since = tonumber(since)
if process ~= ARGV[1] or since > now then
  since = now
  redis.call('set', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', now))
end
return math.max(0, since + ARGV[2] - now)
