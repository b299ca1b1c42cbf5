-- Fast path of a release: the key need not stay taken, and nobody waits. It comes first, so that no
-- function is created for it. A hold whose lease has ended is released like one that has not: nobody whom
-- it excludes has had the lock since.
-- KEYS and ARGV as for release.lua, for one lock
if tonumber(ARGV[4] or 0) <= 0 and redis.pcall('exists', KEYS[2] or ARGV[5]) == 0
  and redis.pcall('zrem', KEYS[1], ARGV[2]) == 1 then
  return 0
end

