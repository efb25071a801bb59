-- A queue in numbers. ARGV: run id, at, queue, horizon. Answers the mode, jobs not given out, deliveries, deliveries whose lease has ended,
-- consumers, entries that no consumer has read, delayed jobs, the first instant of these or '', those due within the horizon.
local queue = ARGV[3]
local consumers, lag = {}, 0
for _, band in ipairs(call('ZRANGE', key('b', queue), 0, -1)) do
    local line = stream(queue, band)
    lag = lag + call('XLEN', line)
    for _, consumer in ipairs(call('XINFO', 'CONSUMERS', line, GROUP)) do
        consumers[consumer[2]] = true
    end
end
local names = 0
for _ in pairs(consumers) do
    names = names + 1
end
local held = call('HLEN', key('h', queue))
return {
    'OK', call('HGET', key('m', queue), 'mode') or '', call('HLEN', key('k', queue)), held,
    call('ZCOUNT', key('l', queue), '-inf', whole(now)), names, math.max(0, lag - held), call('ZCARD', key('d', queue)),
    call('ZRANGE', key('d', queue), 0, 0, 'WITHSCORES')[2] or '',
    call('ZCOUNT', key('d', queue), '-inf', whole(now + tonumber(ARGV[4])))
}
