-- Feed a page to a window, which is open from then on. ARGV: run id, at, queue, token, mark, full, instant of the next job or '', how many
-- jobs the caller will take at once, PostgreSQL's clock, how long the next page may take or '' if this is the last one,
-- whether any of the rows has lost a worker, rows.
local queue = ARGV[3]
if call('GET', key('f', queue)) ~= ARGV[4] then
    return {'NO'}
end
call('SADD', base .. ':Q', queue)
local meta = key('m', queue)
call('HSET', meta, 'mode', 'o', 'look', '0', 'full', ARGV[6], 'at', ARGV[7], 'looked', whole(real), 'mark', ARGV[5])
if call('HEXISTS', meta, 'feeds') == 0 then
    call('HSET', meta, 'feeds', whole(math.max(floor, real)))
end
if ARGV[11] == '1' then
    call('HSET', meta, 'lost', '1')
end
if #ARGV > 11 then
    call('HINCRBY', meta, 'feeds', 1)
    signal(queue, put(queue, 12, tonumber(ARGV[9])) - tonumber(ARGV[8]))
end
if ARGV[10] == '' then
    call('DEL', key('f', queue))
else
    call('PEXPIRE', key('f', queue), ARGV[10])
end
return {'OK', call('HGET', meta, 'feeds')}
