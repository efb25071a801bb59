-- Opens a leg, or closes it and forgets a part of its ledger. ARGV: the leg, whether to open it, how many entries to forget. Answers 1 if there
-- are more of them, -1 if parcels are left.

local leg, limit = ARGV[1], tonumber(ARGV[3])
if ARGV[2] == '1' then
    call('HSET', base .. ':L', leg, 1)
    return 0
end
if call('EXISTS', base .. ':Lp:' .. leg) == 1 then
    return -1
end
call('HDEL', base .. ':L', leg)
local more = 0
for _, name in ipairs({':Ld:', ':La:'}) do
    local ids = call('ZRANGEBYLEX', base .. name .. leg, '-', '+', 'LIMIT', 0, limit)
    many('ZREM', base .. name .. leg, ids)
    if #ids == limit then
        more = 1
    end
end
return more
