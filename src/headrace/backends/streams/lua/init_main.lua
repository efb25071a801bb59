-- A server takes charge: it has the floor that PostgreSQL knows, and older deliveries count for nothing. What a server had before it lost its
-- memory, was started again, or was not in charge, goes. ARGV: run id and floor, '', run id, life, floor, PostgreSQL's clock, when the floor was
-- raised or ''. Refused if the server has lost its memory, or was started again, since it was asked.
local stranger = not floor or general[2] ~= ARGV[3]
if stranger and (call('HGET', base .. ':G', 'life') ~= ARGV[4] or string.match(ARGV[1], '^%S+') ~= ARGV[3]) then
    return {'NO'}
end
if stranger then
    for _, queue in ipairs(call('SMEMBERS', base .. ':Q')) do
        empty(queue)
        call('UNLINK', key('m', queue), key('h', queue), key('l', queue), key('g', queue))
    end
    call('DEL', base .. ':Q')
end
if stranger or tonumber(ARGV[5]) > floor then
    call('HSET', base .. ':G', 'floor', ARGV[5], 'run', ARGV[3], 'skew', whole(tonumber(ARGV[6]) - real), 'raised', ARGV[7])
    call('HDEL', base .. ':G', 'life')
end
return {'OK'}
