-- A floor that PostgreSQL knows, after which older deliveries count for nothing. What a server had before it lost its memory, or was started
-- again, goes. ARGV: run id, '', floor, PostgreSQL's clock, when the floor was raised or ''.
if lost or tonumber(ARGV[3]) > floor then
    if lost then
        for _, queue in ipairs(call('SMEMBERS', base .. ':Q')) do
            empty(queue)
            call('UNLINK', key('m', queue), key('h', queue), key('l', queue), key('g', queue))
        end
        call('DEL', base .. ':Q')
    end
    if not floor or tonumber(ARGV[3]) > floor then
        call('HSET', base .. ':G', 'floor', ARGV[3])
    end
    call('HSET', base .. ':G', 'run', ARGV[1], 'skew', whole(tonumber(ARGV[4]) - real), 'raised', ARGV[5])
end
return {'OK', call('HGET', base .. ':G', 'floor')}
