
-- Releases one lock.
-- Replies: those of release.lua, or the error that leaves the outcome unknown.
local reply, unknown = release(1, ARGV[1], ARGV[2], ARGV[3])
return unknown or reply
