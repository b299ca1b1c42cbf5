
-- A counted lock: its holders have shares of a capacity. A permit of a semaphore is a share of its limit. A reader has one
-- share of ALL, and a writer has ALL of them.
-- The members of the key are the holders, `<owner>/<shares>/<capacity>`, where the capacity is that of the holder's request.
-- Their scores are the times in ms at which their leases end, and COUNTED more. The member `taken` comes before them: its
-- score is the number of all shares that are taken. One ZADD writes both, so that neither is without the other.
local COUNTED, ALL = 5e13, '10000000000'
local time = redis.call('time')
local now = 1000 * time[1] + math.floor(time[2] / 1000)

-- A score in the form in which it is written.
local function score(value)
  return string.format('%.0f', value)
end

-- When the lease of a holder with this score ends.
local function ends(value)
  return value - COUNTED
end

-- What `s<shares>/<capacity>/` asks for: two numbers as texts.
local function asked(text)
  return text:match('^s(%d+)/(%d+)/')
end

-- The shares of a holder.
local function shares_of(name)
  return tonumber(name:match('/(%d+)/%d+$'))
end

-- Lets a key last for `lease` ms. A server that is out of memory rejects ZADD, except after another write in the same
-- script.
local function last_for(key, lease)
  redis.call('pexpire', key, math.max(redis.call('pttl', key), lease))
end

-- Whether a key holds something other than a lock whose capacity is ALL, or is not, as `capacity`. The second result is an
-- error that leaves this unknown.
local function other_kind(key, capacity)
  local first = redis.pcall('zrange', key, 0, 1)
  if first.err then
    local is_other = first.err:find('WRONGTYPE', 1, true)
    return is_other, not is_other and first or nil
  end
  if first[2] then
    local its = first[1] == 'taken' and first[2]:match('/(%d+)$')
    return not its or (its == ALL) ~= (capacity == ALL)
  end
  return first[1] and first[1] ~= 'taken'
end

-- The number of shares that are taken. Without a holder, there are none.
local function taken(key)
  local first = redis.pcall('zrange', key, 0, 1, 'withscores')
  return first[1] == 'taken' and first[3] and tonumber(first[2]) or 0
end

-- The hold of an owner, which may have another mode than the one that is asked for: its name, and its score.
local function hold_of(key, owner, shares, capacity)
  local name = owner .. '/' .. shares .. '/' .. capacity
  local own = redis.pcall('zscore', key, name)
  if own or capacity ~= ALL then
    return name, own
  end
  name = owner .. '/' .. (shares == ALL and '1' or ALL) .. '/' .. ALL
  return name, redis.pcall('zscore', key, name)
end

-- The name of the hold that `held` has found, and its score.
local found, found_score

-- Whether `owner` has lock i. `wanted` begins with what it has asked for; without it, it is a reader or a writer. The first
-- result is
--   OWNED               yes
--   GONE                no, its lease has ended, or was ended
--   TAKEN               no, and its shares are taken, or the key holds no such lock
-- The second result is an error that leaves this unknown: any error but a wrong type.
local function held(i, owner, wanted)
  local shares, capacity = '1', ALL
  if wanted then
    shares, capacity = asked(wanted)
  end
  local name, own = hold_of(KEYS[i], owner, shares, capacity)
  if type(own) == 'table' then
    if not own.err:find('WRONGTYPE', 1, true) then
      return nil, own
    end
    return 'TAKEN'
  end
  if own and ends(own) > now then
    found, found_score = name, tonumber(own)
    return 'OWNED'
  end
  local is_taken = not own and taken(KEYS[i]) + shares > tonumber(capacity)
    and redis.call('zcount', KEYS[i], score(COUNTED + now + 1), '+inf') > 0
  return is_taken and 'TAKEN' or 'GONE'
end

-- Gives shares to a new holder with this name for `lease` ms.
local function give(key, name, lease)
  local total = score(taken(key) + shares_of(name))
  redis.call('zadd', key, total, 'taken', score(COUNTED + now + lease), name)
  last_for(key, lease)
end

-- Removes a holder. The key stays until `clear`: in a slot that is being moved, it must not vanish in between.
local function remove(key, name)
  local total = taken(key) - shares_of(name)
  redis.call('zrem', key, name)
  redis.call('zadd', key, score(total), 'taken')
end

-- Deletes a key without holders.
local function clear(key)
  if redis.call('zcount', key, score(COUNTED), '+inf') == 0 then
    redis.call('del', key)
  end
end

-- Ends the leases that are over.
local function end_leases(key)
  local from, to = score(COUNTED), score(COUNTED + now)
  local over = redis.call('zrangebyscore', key, from, to)
  if over[1] then
    local total = taken(key)
    for _, name in ipairs(over) do
      total = total - shares_of(name)
    end
    redis.call('zremrangebyscore', key, from, to)
    redis.call('zadd', key, score(total), 'taken')
  end
end
