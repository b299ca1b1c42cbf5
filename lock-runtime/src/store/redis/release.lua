
-- Frees a lock if its owner still has it, and wakes one waiter of every waiting process.
-- KEYS the lock's   ARGV[1] owner   ARGV[2] wake-up channel   ARGV[4] what is said there
-- ARGV[3] for how many ms it is to stay taken all the same: then it expires by itself
-- Replies: 0, it is gone; -1, it is somebody else's and was left alone; else 1 + the number of processes told.
local state, unknown = held(1, ARGV[1])
if unknown then
  return unknown
end
if state ~= 1 then
  return state
end
if tonumber(ARGV[3]) > 0 then
  keep(1, ARGV[1], ARGV[3])
  return 1
end
redis.call('del', unpack(KEYS))
-- A user who may not publish still releases; waiters then find out by their safety poll.
local told = redis.pcall('publish', ARGV[2], ARGV[4])
return 1 + (tonumber(told) or 0)
