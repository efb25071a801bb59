-- Removes ended jobs. ARGV: now or '', state, then id and instant of each; a job that has changed since stays. Answers how many were
-- removed, and their bytes.

local now, state = clock(ARGV[1]), tonumber(ARGV[2])
local removed, freed = 0, 0
for i = 3, #ARGV, 2 do
    local id = ARGV[i]
    if tonumber(call('ZSCORE', base .. ':d:' .. state, id) or -1) == tonumber(ARGV[i + 1]) then
        local j = find(id) or read_state(false)
        j.state = state
        removals.remove(id, j, now)
        removed, freed = removed + 1, freed + j.size
    end
end
removals.settle()
return {removed, number(freed)}
