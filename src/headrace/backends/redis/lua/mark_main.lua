-- Jobs that found no room here are about to be stored in another shard. ARGV: ids. Answers the numbers of those that are here all the same.
local found = {}
for i = 1, #ARGV[1] / 16 do
    local id = string.sub(ARGV[1], (i - 1) * 16 + 1, i * 16)
    if call('HEXISTS', base .. ':j', id) == 1 then
        found[#found + 1] = i
    else
        mark_left(id)
    end
end
return found
