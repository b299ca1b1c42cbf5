-- A lock that may have several holders: lock i is KEYS[i], a sorted set of them, by the time in ms at which
-- their leases end, and a multiple of 1e13 more, which tells their kind: see held.lua of each layout. The
-- key outlives the holders by a second, so that the next client learns what the last one was.
local time = redis.call('time')
local now = 1000 * time[1] + math.floor(time[2] / 1000)

-- A score in the form in which it is written.
local function score(value)
  return string.format('%.0f', value)
end

-- When the lease of a holder with this score ends.
local function ends(value)
  return value % 1e13
end

-- Lets a key last for `lease` ms. A server that is out of memory rejects ZADD, except after another
-- write in the same script.
local function last_for(key, lease)
  redis.call('pexpire', key, math.max(redis.call('pttl', key), lease + 1000))
end

-- Whether a key holds something other than holders with scores from `from` to `to`. The second result is an
-- error that leaves this unknown.
local function other_kind(key, from, to)
  local first = redis.pcall('zrange', key, 0, 0, 'withscores')
  if first.err then
    local is_other = first.err:find('WRONGTYPE', 1, true)
    return is_other, not is_other and first or nil
  end
  if first[1] then
    local last = redis.call('zrevrange', key, 0, 0, 'withscores')
    return tonumber(first[2]) < from or tonumber(last[2]) >= to
  end
end

