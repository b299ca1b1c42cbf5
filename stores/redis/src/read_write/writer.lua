-- Ends a script about one lock, unless `ARGV[1]`, which owns it, is a writer. Replies:
--   READER              it is a reader
if tonumber(redis.call('zscore', KEYS[1], ARGV[1])) < WRITER then
  return 'READER'
end

