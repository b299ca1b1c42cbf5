-- Gives a holder its permits for `lease` ms.
local function give(key, owner, count, limit, lease)
  local members, till = {}, score(PERMIT + now + lease)
  for number = 1, count do
    members[2 * number - 1], members[2 * number] = till, permit(owner, number, limit)
  end
  redis.call('zadd', key, unpack(members))
  last_for(key, tonumber(lease))
end

