-- Remove ended jobs. ARGV: state, then id and instant of each: one that has changed since stays. Answers how many went, and their bytes.

local removed, freed = 0, 0
for i = 2, #ARGV, 2 do
    local id = ARGV[i]
    if tonumber(call('ZSCORE', base .. ':d:' .. ARGV[1], id) or -1) == tonumber(ARGV[i + 1]) then
        local j = find(id) or read_state(false)
        j.state = tonumber(ARGV[1])
        leave(id, j)
        forget(id, j)
        removed, freed = removed + 1, freed + j.size
    end
end
settle_counts()
return {removed, number(freed)}
