-- Looks at locks that are waited for. Changes nothing.
-- KEYS the locks'
-- Replies: for each lock, for how many ms it is still somebody's; -1, for ever; -2, it is worth a try: it is free, or no
-- lock of this format.
local replies = {}
for i = 1, #KEYS do
  replies[i] = redis.call('type', KEYS[i]).ok == 'string' and redis.call('pttl', KEYS[i]) or -2
end
return replies
