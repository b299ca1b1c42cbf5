
-- Records the end of a run, or that its body has not begun.
-- KEYS[1] the lock   KEYS[2] the record of the last run
-- ARGV[1] owner, which identifies the run   ARGV[2] when it began, in ms; empty if it has not
-- ARGV[3] '1' if the run counts for its period   ARGV[4] who runs
-- ARGV[5] for how many ms the record is kept   ARGV[6] '1' if the run has failed
-- Replies (`record_replies::run_ended`):
--   RECORDED
--   GONE                the lock does not exist
--   TAKEN               it has another owner
--   WRONGFORMAT, kind   the second key holds a value of this kind
local last, unread = fields_of_record('owner')
if unread then
  return unread
end
-- The body has not begun. A start that comes later has no effect.
if ARGV[2] == '' then
  redis.call('hset', KEYS[2], 'undone', ARGV[1])
  if not last[1] then
    redis.call('pexpire', KEYS[2], ARGV[5])
  elseif last[1] == ARGV[1] then
    redis.call('hset', KEYS[2], 'counts', 0)
  end
  return 'RECORDED'
end
local time = redis.call('time')
redis.call('hset', KEYS[2], 'owner', ARGV[1], 'by', ARGV[4], 'counts', ARGV[3], 'began', ARGV[2],
  'ended', string.format('%.0f', 1000 * time[1] + math.floor(time[2] / 1000)), 'failed', ARGV[6])
redis.call('pexpire', KEYS[2], ARGV[5])
return 'RECORDED'
