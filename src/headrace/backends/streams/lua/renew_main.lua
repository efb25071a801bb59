-- ARGV: run id, at, queue, holder, how long leases last, pairs of id and epoch. Answers 1 for each that is this holder's.
local queue = ARGV[3]
local mine = {}
for i = 6, #ARGV, 2 do
    local packed = call('HGET', key('h', queue), ARGV[i])
    local good = 0
    if packed then
        local epoch, holder = unpacked(packed)
        if epoch == ARGV[i + 1] and holder == ARGV[4] and tonumber(epoch) >= floor then
            call('ZADD', key('l', queue), whole(now + tonumber(ARGV[5])), ARGV[i])
            good = 1
        end
    end
    table.insert(mine, good)
end
return {'OK', mine}
