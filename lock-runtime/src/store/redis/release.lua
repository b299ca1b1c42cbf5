
-- Frees a lock if its owner still has it, and wakes one waiter of every waiting process. Also of one that is to stay:
-- they may know of a later end only, and sleep until then.
-- KEYS the lock's   ARGV[1] owner   ARGV[2] wake-up channel   ARGV[4] what is said there
-- ARGV[3] for how many ms it is to stay taken all the same: then it expires by itself
-- Replies: 0, it is gone; -1, it is somebody else's and was left alone; 1 + the number of processes told, it is free; -2 -
-- that number, it stays; a string, either of these, and this is why nobody was told: then they find out by themselves.
local state, unknown = held(1, ARGV[1])
if unknown then
  return unknown
end
if state ~= 1 then
  return state
end
local stays = tonumber(ARGV[3]) > 0
if stays then
  keep(1, ARGV[1], ARGV[3])
else
  redis.call('del', unpack(KEYS))
end
local told = redis.pcall('publish', ARGV[2], ARGV[4])
if type(told) == 'table' then
  return told.err
end
return stays and -2 - told or 1 + told
