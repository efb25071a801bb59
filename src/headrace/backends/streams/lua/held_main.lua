-- Deliveries of a queue, those first whose lease ends first. ARGV: run id, at, queue, how many, h(older) or a(ll), holder.
local queue, most, kind = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local found = {}
for _, id in ipairs(call('ZRANGE', key('l', queue), 0, most - 1)) do
    local one = delivery(queue, id)
    if not one then
        call('ZREM', key('l', queue), id)
    elseif kind == 'a' or one[3] == ARGV[6] then
        table.insert(found, one)
    end
end
return {'OK', found}
