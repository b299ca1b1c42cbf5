
-- Releases one lock.
-- Replies: those of release.lua, or the error that leaves the outcome unknown.
local reply, unknown = release(1, ARGV[2], ARGV[3] or '', ARGV[4] or '0', KEYS[2] or ARGV[5])
return unknown or reply
