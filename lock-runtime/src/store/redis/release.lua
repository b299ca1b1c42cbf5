-- Frees a lock if its owner still has it, and wakes one waiter of every waiting process.
-- KEYS[1] the lock   ARGV[1] owner token   ARGV[2] wake-up channel   ARGV[4] who says so
-- ARGV[3] for how many ms it is to stay taken all the same: then it expires by itself
-- Replies: 0, it is gone; -1, it is somebody else's and was left alone; else 1 + the number of processes told.
local owner, unknown = read(KEYS[1])
if unknown then
  return unknown
end
if not owner then
  return 0
end
if owner ~= ARGV[1] then
  return -1
end
if tonumber(ARGV[3]) > 0 then
  -- Under another name, which no renewal that is still on its way extends. Out of memory it has to keep its own.
  local renamed = redis.pcall('set', KEYS[1], 'kept:' .. ARGV[1], 'px', ARGV[3])
  if renamed.err then
    redis.call('pexpire', KEYS[1], ARGV[3])
  end
  return 1
end
redis.call('del', KEYS[1])
-- A user who may not publish still releases; waiters then find out by their safety poll.
local told = redis.pcall('publish', ARGV[2], ARGV[4])
return 1 + (tonumber(told) or 0)
