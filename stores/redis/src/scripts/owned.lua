
-- Ends a script about one lock, unless `ARGV[1]` owns it. Replies:
--   GONE                the lock does not exist
--   TAKEN               it has another owner
--   an error            a key could not be read
local state, unknown = held(1, ARGV[1])
if unknown then
  return unknown
end
if state ~= 'OWNED' then
  return state
end
