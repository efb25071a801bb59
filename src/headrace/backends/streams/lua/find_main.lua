-- The deliveries of these jobs. ARGV: run id, at, queue, r(ecall) or l(ook), ids. What is recalled and was not given out leaves the window.
local queue = ARGV[3]
local found = {}

local function recall(id)
    local place = call('HGET', key('k', queue), id)
    if place == 'd' then
        call('ZREM', key('d', queue), id)
        call('HDEL', key('e', queue), id)
    elseif place then
        local band, entry = string.match(place, '^(%S+) (%S+)$')
        call('XDEL', stream(queue, band), entry)
    end
    if place then
        call('HDEL', key('k', queue), id)
    end
end

for i = 5, #ARGV do
    local one = delivery(queue, ARGV[i])
    if one then
        table.insert(found, one)
    end
    if ARGV[4] == 'r' then
        try(queue, recall, ARGV[i])
    end
end
if ARGV[4] == 'r' then
    call('HINCRBY', key('m', queue), 'feeds', 1)
    call('DEL', key('f', queue))
end
return {'OK', found}
