-- A semaphore: the members of its key are the permits that are held, `<owner>/<number>/<limit>`, where
-- the permits of a holder are numbered from 1, and the limit is that of its request. The score has 3e13
-- more.
local PERMIT, END = 3e13, 4e13

-- A permit of a holder.
local function permit(owner, number, limit)
  return owner .. '/' .. number .. '/' .. limit
end

-- Whether the holder of the permit `first`, its first one, still has its permits of semaphore i. The first
-- result is
--   OWNED               yes
--   GONE                no, its lease has ended, or was ended
--   TAKEN               no, the key holds no semaphore
-- The second result is an error that leaves this unknown: any error but a wrong type. The third result is
-- the score.
local function held(i, first)
  local own = redis.pcall('zscore', KEYS[i], first)
  if type(own) == 'table' then
    if not own.err:find('WRONGTYPE', 1, true) then
      return nil, own
    end
    return 'TAKEN'
  end
  if own and ends(own) > now then
    return 'OWNED', nil, tonumber(own)
  end
  return 'GONE'
end

