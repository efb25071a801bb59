-- PostgreSQL gives the jobs of this queue out from now on. ARGV: run id, at, queue, how long at least.
local queue = ARGV[3]
if call('HGET', key('m', queue), 'mode') ~= 'o' then
    call('UNLINK', key('h', queue), key('l', queue))
    call('SADD', base .. ':Q', queue)
    call('HSET', key('m', queue), 'mode', 'x', 'until', whole(real + tonumber(ARGV[4])))
end
signal(queue, 1)
return {'OK'}
