-- Deliveries whose lease has ended, or that count for nothing, of all queues. ARGV: run id and floor, at, how many, microseconds after which a
-- queue that has nothing, and that nobody looked at, is forgotten; and, if living workers must have had time to beat: the caller's last beat, since
-- when its beats have come without a gap, how long a gap is, and how long there must have been none. Answers pairs of a queue and its deliveries.
local most, idle = tonumber(ARGV[3]), tonumber(ARGV[4])
if ARGV[5] and (tonumber(ARGV[5]) < now - tonumber(ARGV[7]) or tonumber(ARGV[6]) > now - tonumber(ARGV[8])) then
    most = 0
end
local answer = {'OK'}
for _, queue in ipairs(call('SMEMBERS', base .. ':Q')) do
    local found = {}
    for _, id in ipairs(most > 0 and call('ZRANGE', key('l', queue), 0, most - 1) or {}) do
        local one = delivery(queue, id)
        if not one then
            call('ZREM', key('l', queue), id)
        elseif tonumber(one[4]) <= 0 or tonumber(one[2]) < floor then
            table.insert(found, one)
        end
    end
    if #found > 0 then
        most = most - #found
        table.insert(answer, queue)
        table.insert(answer, found)
    end
    local mode, looked, ends = unpack(call('HMGET', key('m', queue), 'mode', 'looked', 'until'))
    if mode ~= 'c' and real - math.max(tonumber(looked) or 0, tonumber(ends) or 0) > idle
        and call('EXISTS', key('k', queue), key('h', queue)) == 0 then
        empty(queue)
        call('UNLINK', key('m', queue), key('g', queue))
        call('SREM', base .. ':Q', queue)
    end
end
return answer
