
-- Ends a script about one lock, unless `ARGV[1]`, which owns it, is a writer. Replies:
--   READER              it is a reader
if shares_of(found) == 1 then
  return 'READER'
end
