-- The usual case of a release, before anything else is set up: it is ours, and need not stay. See release.lua.
if ARGV[3] == '0' and redis.pcall('get', KEYS[1]) == ARGV[1] then
  redis.call('del', KEYS[1])
  local told = redis.pcall('publish', ARGV[2], ARGV[4])
  return type(told) == 'table' and {'UNTOLD', told.err} or 1 + told
end

