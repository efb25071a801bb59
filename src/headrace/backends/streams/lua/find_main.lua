-- The deliveries of these jobs. ARGV: run id, at, queue, r(ecall) or l(ook), ids. What is recalled and was not given out leaves the window.
local queue = ARGV[3]
local found = {}
for i = 5, #ARGV do
    local one = delivery(queue, ARGV[i])
    if one then
        table.insert(found, one)
    end
    local place = ARGV[4] == 'r' and call('HGET', key('k', queue), ARGV[i])
    if place == 'd' then
        call('ZREM', key('d', queue), ARGV[i])
        call('HDEL', key('e', queue), ARGV[i])
    elseif place then
        local band, entry = string.match(place, '^(%S+) (%S+)$')
        call('XDEL', stream(queue, band), entry)
    end
    if place then
        call('HDEL', key('k', queue), ARGV[i])
    end
end
if ARGV[4] == 'r' then
    call('HINCRBY', key('m', queue), 'feeds', 1)
    call('DEL', key('f', queue))
end
return {'OK', found}
