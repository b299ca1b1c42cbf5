
-- The announcement under a key: the owner, the number of the term and a name; false if there is none. The
-- second result is the reply if the key holds something else, or could not be read.
local function announcement(key)
  local text = redis.pcall('get', key)
  if type(text) == 'table' then
    local kind = redis.call('type', key).ok
    return nil, kind ~= 'string' and {'WRONGFORMAT', kind} or text
  end
  if text and not text:match('^' .. ('[%w_.-]'):rep(32) .. '%d+ ') then
    return nil, {'WRONGFORMAT', 'different value'}
  end
  return text
end
