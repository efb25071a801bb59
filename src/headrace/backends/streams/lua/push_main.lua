-- New jobs of a queue. ARGV: run id, at, queue, feeds as it was before they were stored, room, PostgreSQL's clock, rows. A window that something
-- else has fed since may have had them already.
local queue = ARGV[3]
local mode, feeds, full = unpack(call('HMGET', key('m', queue), 'mode', 'feeds', 'full'))
local jobs = (#ARGV - 6) / 7
if mode ~= 'o' or feeds ~= ARGV[4] or full == '1' or call('HLEN', key('k', queue)) + jobs > tonumber(ARGV[5]) then
    if mode == 'o' then
        call('HSET', key('m', queue), 'look', '1')
    end
    signal(queue, jobs)
    return {'NO', feeds or '', mode or ''}
end
signal(queue, put(queue, 7, tonumber(ARGV[6])))
return {'OK', feeds, mode}
