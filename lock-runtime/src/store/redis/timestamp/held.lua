-- `Timestamp`: lock i is KEYS[2 * i - 1], a string: the Unix time in ms at which it expires. It does not say whose it
-- is; KEYS[2 * i] does, for ours: the owner's token and the time that was written for it. The lock is that owner's while
-- both times are the same, and the key has an expiry: others give theirs none, so one of theirs with the same time is
-- told from it.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function get(key)
  local value = redis.pcall('get', key)
  if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
    return nil, value
  end
  return value
end

-- Whether the time of lock i is one of ours, whoever has it or had it.
local function noted(i, value)
  local note = get(KEYS[2 * i])
  return type(note) == 'string' and note:sub(-#value - 1) == ':' .. value
end

-- Whether this owner has lock i: 1, it has; 0, the lock is gone; -1, it is somebody else's, or no lock. Any error but
-- one about the type of a key means that nobody knows, and is the second result.
local function held(i, owner)
  local value, unknown = get(KEYS[2 * i - 1])
  if unknown or not value then
    return 0, unknown
  end
  local note
  note, unknown = get(KEYS[2 * i])
  if unknown or type(value) == 'table' or note ~= owner .. ':' .. value then
    return -1, unknown
  end
  if redis.call('pttl', KEYS[2 * i - 1]) < 0 then
    return -1
  end
  -- From then on others take it for free, and may be about to.
  return tonumber(value) > now and 1 or 0
end
