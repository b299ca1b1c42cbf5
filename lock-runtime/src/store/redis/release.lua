
-- Frees lock i if its owner still has it, and wakes one waiter of every waiting process. Also of one that is to stay for
-- so many ms: they may know of a later end only, and sleep until then.
-- KEYS the locks'   ARGV for each lock: owner, wake-up channel, for how many ms it is to stay taken all the same (then it
-- expires by itself); and behind them what is said in the channels
-- The reply: 0, it is gone; -1, it is somebody else's and was left alone; 1 + the number of processes told, it is free; -2
-- - that number, it stays; UNTOLD and a text, either of these, and this is why nobody was told: then they find out by
-- themselves. Any error means that nobody knows, and is the second result.
local each = #KEYS / ((#ARGV - 1) / 3)

local function release(i, owner, channel, time)
  local state, unknown = held(i, owner)
  if unknown then
    return nil, unknown
  end
  if state ~= 1 then
    return state
  end
  local stays = tonumber(time) > 0
  if stays then
    keep(i, owner, time)
  else
    redis.call('del', unpack(KEYS, (i - 1) * each + 1, i * each))
  end
  local told = redis.pcall('publish', channel, ARGV[#ARGV])
  if type(told) == 'table' then
    return {'UNTOLD', told.err}
  end
  return stays and -2 - told or 1 + told
end
