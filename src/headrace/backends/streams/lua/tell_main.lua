-- Jobs of a queue may have become claimable in PostgreSQL, or will be at an instant. ARGV: run id, at, queue, instant or ''.
local queue = ARGV[3]
local meta = key('m', queue)
if call('HGET', meta, 'mode') == 'o' then
    local at = call('HGET', meta, 'at')
    if ARGV[4] == '' or tonumber(ARGV[4]) <= now then
        call('HSET', meta, 'look', '1')
    elseif not at or at == '' or tonumber(ARGV[4]) < tonumber(at) then
        call('HSET', meta, 'at', ARGV[4])
    end
end
signal(queue, 1)
return {'OK'}
