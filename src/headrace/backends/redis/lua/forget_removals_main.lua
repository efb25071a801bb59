-- Forgets counts of the oldest hours. ARGV: how many stay, and how many go at most. Answers how many went, and how many stay.

local kept = call('ZCARD', base .. ':E')
local gone = math.max(0, math.min(kept - tonumber(ARGV[1]), tonumber(ARGV[2])))
for _, field in ipairs(gone > 0 and call('ZRANGE', base .. ':E', 0, gone - 1) or {}) do
    call('HDEL', base .. ':Ej', field)
    call('HDEL', base .. ':Eb', field)
    call('ZREM', base .. ':E', field)
end
return {gone, kept - gone}
