
-- Fields of the record of the last run. The second result is the reply if they cannot be read.
local function fields_of_record(...)
  local fields = redis.pcall('hmget', KEYS[2], ...)
  if not fields.err then
    return fields
  end
  local kind = redis.call('type', KEYS[2]).ok
  return nil, kind ~= 'hash' and kind ~= 'none' and {'WRONGFORMAT', kind} or fields
end

-- A time in ms of the record; nothing if the field was changed by hand.
local function time_of(field)
  return field and #field <= 15 and field:match('^%d+$') and tonumber(field) or nil
end
