-- A read-write lock: the members of its key are owners. The score has 1e13 more for a reader, and 2e13
-- more for a writer.
local READER, WRITER, END = 1e13, 2e13, 3e13

-- Whether `owner` has lock i. The first result is
--   OWNED               yes
--   GONE                no, its lease has ended, or was ended
--   TAKEN               no, there is a writer, or the key holds no lock
-- The second result is an error that leaves this unknown: any error but a wrong type. The third result is
-- the score.
local function held(i, owner)
  local own = redis.pcall('zscore', KEYS[i], owner)
  if type(own) == 'table' then
    if not own.err:find('WRONGTYPE', 1, true) then
      return nil, own
    end
    return 'TAKEN'
  end
  if own and ends(own) > now then
    return 'OWNED', nil, tonumber(own)
  end
  local writers = redis.call('zcount', KEYS[i], score(WRITER + now + 1), score(END))
  return writers > 0 and 'TAKEN' or 'GONE'
end

