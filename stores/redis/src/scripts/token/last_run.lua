
-- The record of the last run.
-- KEYS[1] the lock   KEYS[2] the record of the last run
-- Replies (`record_replies::last_run`):
--   NONE                there is none, or it was changed by hand
--   RUN, began, ended, failed, who runs, '1' if the owner who began it has the lock
--   WRONGFORMAT, kind   the second key holds a value of this kind
local record, unread = fields_of_record('began', 'ended', 'failed', 'by', 'owner')
if unread then
  return unread
end
for i = 1, 5 do
  if not record[i] then
    return 'NONE'
  end
end
local ended = record[2]
if not time_of(record[1]) or ended ~= '' and not time_of(ended) then
  return 'NONE'
end
local state, unknown = held(1, record[5])
if unknown then
  return unknown
end
return {'RUN', record[1], ended, record[3], record[4], state == 'OWNED' and '1' or '0'}
