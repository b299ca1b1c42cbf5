
-- Records the beginning of a run, unless there was one in this period.
-- KEYS[1] the lock   KEYS[2] the record of the last run
-- ARGV[1] owner, which identifies the run   ARGV[2] the length of the period in ms
-- ARGV[3] '1' if the run counts even if it fails   ARGV[4] who runs
-- ARGV[5] for how many ms the record is kept   ARGV[6] the number of the request of this run, from 1
-- Replies (`record_replies::run_started`):
--   STARTED, now        the time of the server in ms, or that of the first such request of the run
--   RAN, n              there was a run in this period, which ends in n ms
--   GONE                the lock does not exist
--   TAKEN               it has another owner, or the start was undone
--   WRONGFORMAT, kind   the second key holds a value of this kind
local last, unread = fields_of_record('owner', 'began', 'counts', 'undone', 'attempt')
if unread then
  return unread
end
-- The request has come after its undo.
if last[4] == ARGV[1] then
  return 'TAKEN'
end
local began = time_of(last[2])
local time = redis.call('time')
local now = 1000 * time[1] + math.floor(time[2] / 1000)
local length = tonumber(ARGV[2])
local first = now - now % length
-- If the period has ended since the first request of the run, the run begins in the next one. An earlier
-- request that arrives late changes nothing, because its body may have begun.
if began and last[1] == ARGV[1] then
  local is_later = tonumber(ARGV[6]) > (tonumber(last[5]) or 0)
  if began >= first or not is_later then
    if is_later then
      redis.call('hset', KEYS[2], 'attempt', ARGV[6])
    end
    return {'STARTED', began}
  end
  began = nil
end
-- A run of the next period counts as well: the clock has been set back since.
if began and last[3] == '1' and began >= first and began < first + 2 * length then
  return {'RAN', began - began % length + length - now}
end
redis.call('hset', KEYS[2], 'owner', ARGV[1], 'by', ARGV[4], 'counts', ARGV[3],
  'began', string.format('%.0f', now), 'ended', '', 'failed', '', 'attempt', ARGV[6])
redis.call('pexpire', KEYS[2], ARGV[5])
return {'STARTED', now}
