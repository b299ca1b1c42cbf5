-- `Timestamp`: lock i is KEYS[2 * i - 1], a string: the Unix time in ms at which it expires. This
-- value does not name the owner. For locks of this library, the owner key KEYS[2 * i] does: it has
-- the owner and the time that was written with it. The owner has the lock while both times are
-- equal and KEYS[2 * i - 1] has an expiry. Other clients set no expiry, so a lock of theirs with
-- the same time is not mistaken for this owner's.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function get(key)
  local value = redis.pcall('get', key)
  if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
    return nil, value
  end
  return value
end

-- Whether this library wrote the time of lock i, for any owner.
local function noted(i, value)
  local note = get(KEYS[2 * i])
  return type(note) == 'string' and note:sub(-#value - 1) == ':' .. value
end

-- Whether `owner` has lock i. The first result is
--   OWNED               yes
--   GONE                no, the lock does not exist
--   TAKEN               no, it has another owner, or is no lock
-- The second result is an error that leaves this unknown: any error but a wrong type.
local function held(i, owner)
  local value, unknown = get(KEYS[2 * i - 1])
  if unknown or not value then
    return 'GONE', unknown
  end
  local note
  note, unknown = get(KEYS[2 * i])
  if unknown or type(value) == 'table' or note ~= owner .. ':' .. value then
    return 'TAKEN', unknown
  end
  if redis.call('pttl', KEYS[2 * i - 1]) < 0 then
    return 'TAKEN'
  end
  -- Once its time is over, other clients may take the lock at any moment.
  return tonumber(value) > now and 'OWNED' or 'GONE'
end
