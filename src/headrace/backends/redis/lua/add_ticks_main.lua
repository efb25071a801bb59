-- Enters ticks into the history of a schedule, except of slots that are there. ARGV: uid, then slot, when it was planned, and tick of each.

local uid = ARGV[1]
for i = 2, #ARGV, 3 do
    local slot = tonumber(ARGV[i])
    if not tick_at(uid, slot) then
        call('ZADD', ticks_of(uid), ARGV[i], ARGV[i + 2])
        call('ZADD', base .. ':T', ARGV[i + 1], struct.pack(PLANNED, uid, slot))
    end
end
return 0
