-- Remove consumers that own nothing: this one, or all that have been idle for this many milliseconds. ARGV: run id, at, queue, holder or '', idle.
local queue = ARGV[3]
local gone = 0
for _, band in ipairs(call('ZRANGE', key('b', queue), 0, -1)) do
    local line = stream(queue, band)
    for _, consumer in ipairs(redis.pcall('XINFO', 'CONSUMERS', line, GROUP)) do
        local about = {}
        for i = 1, #consumer, 2 do
            about[consumer[i]] = consumer[i + 1]
        end
        if about.pending == 0 and (about.name == ARGV[4] or ARGV[4] == '' and about.idle >= tonumber(ARGV[5])) then
            call('XGROUP', 'DELCONSUMER', line, GROUP, about.name)
            gone = gone + 1
        end
    end
end
return {'OK', gone}
