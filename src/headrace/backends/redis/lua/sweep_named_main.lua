-- Removes ended jobs that are named. ARGV: now or '', state, older_than (-1: no bound), how long ago they must have ended at least, the
-- last instant at which they may have ended ('': none), whether it is a dry run, then id and epoch of each. Answers removed, bytes, kept.

local now, state, age = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local latest = math.min(now - tonumber(ARGV[4]), now - math.max(age, 0), tonumber(ARGV[5]) or now)
local removed, freed = 0, 0
for i = 7, #ARGV, 2 do
    local id = ARGV[i]
    local ended = tonumber(call('ZSCORE', base .. ':d:' .. state, id) or FOREVER)
    local j = ended <= latest and find(id)
    if j and j.epoch == tonumber(ARGV[i + 1]) and not (state == COMPLETED and j.held_until > now) then
        removed, freed = removed + 1, freed + j.size
        if ARGV[6] ~= '1' then
            j.state = state
            removals.remove(id, j, now)
        end
    end
end
removals.settle()
local kept = call('ZCARD', base .. ':d:' .. state)
return {removed, number(freed), ARGV[6] == '1' and kept - removed or kept}
