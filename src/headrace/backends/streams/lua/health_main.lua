-- A queue in numbers. ARGV: run id and floor, at, queue. Answers the mode, jobs not given out, deliveries, deliveries whose lease has ended,
-- consumers, entries that no consumer has read, and for how long the oldest job that was not given out has been due or ''.
local queue = ARGV[3]
local consumers, lag, oldest = {}, 0, nil
for _, band in ipairs(call('ZRANGE', key('b', queue), 0, -1)) do
    local line = stream(queue, band)
    lag = lag + call('XLEN', line)
    local read = '-'
    for _, group in ipairs(call('XINFO', 'GROUPS', line)) do
        read = '(' .. group[8]
    end
    local next = call('XRANGE', line, read, '+', 'COUNT', 1)[1]
    if next then
        oldest = math.min(oldest or now, tonumber(next[2][4]) or now)
    end
    for _, consumer in ipairs(call('XINFO', 'CONSUMERS', line, GROUP)) do
        consumers[consumer[2]] = true
    end
end
local delayed = call('ZRANGE', key('d', queue), 0, 0, 'WITHSCORES')[2]
if delayed and tonumber(delayed) <= now then
    oldest = math.min(oldest or now, tonumber(delayed))
end
local names = 0
for _ in pairs(consumers) do
    names = names + 1
end
local held = call('HLEN', key('h', queue))
return {
    'OK', call('HGET', key('m', queue), 'mode') or '', call('HLEN', key('k', queue)), held,
    call('ZCOUNT', key('l', queue), '-inf', whole(now)), names, math.max(0, lag - held), oldest and whole(now - oldest) or ''
}
